//! Bookkeeping of requests in flight.
#![forbid(unsafe_code)]
