//! The table that the main job prints.

use std::time::Duration;

use crate::job::PhaseReport;

/// What stands above each column.
const HEADINGS: [&str; 12] = [
    "phase",
    "requests",
    "seconds",
    "IOPS",
    "MB/s",
    "mean us",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "fdatasyncs",
    "durable writes",
    "waits",
];

/// One line for each phase, below a line of headings.
pub fn render(reports: &[PhaseReport]) -> String {
    let rows: Vec<[String; HEADINGS.len()]> =
        [HEADINGS.map(str::to_owned)].into_iter().chain(reports.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(report: &PhaseReport) -> [String; HEADINGS.len()] {
    let microseconds = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
    let latencies = &report.latencies;
    [
        report.name.to_owned(),
        latencies.count().to_string(),
        format!("{:.3}", report.elapsed.as_secs_f64()),
        format!("{:.0}", report.rate),
        format!("{:.1}", report.rate * report.bytes as f64 / 1e6),
        microseconds(latencies.mean()),
        microseconds(latencies.quantile(0.5)),
        microseconds(latencies.quantile(0.99)),
        microseconds(latencies.quantile(0.999)),
        report.counters.syncs.to_string(),
        report.counters.durable_writes.to_string(),
        report.counters.waits.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Counters;
    use blkring_engine::Histogram;

    #[test]
    fn columns_are_aligned() {
        let mut latencies = Histogram::default();
        latencies.record(Duration::from_micros(100));
        let report = PhaseReport {
            name: "fill",
            elapsed: Duration::from_millis(1),
            rate: 1000.0,
            bytes: 4096,
            latencies,
            counters: Counters { syncs: 3, durable_writes: 7, waits: 12345 },
        };
        let text = render(&[report]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "phase  requests  seconds  IOPS  MB/s  mean us  p50 us  p99 us  p99.9 us  fdatasyncs  durable writes  waits",
                "fill          1    0.001  1000   4.1    100.0   100.4   100.4     100.4           3               7  12345",
            ]
        );
    }
}
