use super::*;

const READER: Claim = Claim::exclusive(Access::ReadOnly);
const WRITER: Claim = Claim::exclusive(Access::ReadWrite);
const SHARED_READER: Claim = Claim::shared(Access::ReadOnly);
const SHARED_WRITER: Claim = Claim::shared(Access::ReadWrite);

fn file() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new().unwrap()
}

fn open(file: &tempfile::NamedTempFile, claim: Claim) -> Result<LockedFile, LockError> {
    LockedFile::new(file.reopen().unwrap(), &"image".into(), LockMode::On, claim)
}

/// The bytes that somebody holds.
fn held(file: &tempfile::NamedTempFile) -> Vec<u32> {
    let look = file.reopen().unwrap();
    (0..300).filter(|byte| sys::is_held_by_another(&look, *byte).unwrap()).collect()
}

#[test]
fn each_claim_holds_its_bytes_and_gives_them_up() {
    for (claim, bytes) in [
        (READER, &[100, 201, 203][..]),
        (WRITER, &[100, 101, 103, 201, 203]),
        (SHARED_READER, &[100]),
        (SHARED_WRITER, &[100, 101]),
        (Claim::create(), &[101, 103, 203]),
        (READER.sharing(), &[100]),
    ] {
        let file = file();
        let first = open(&file, claim).unwrap();
        assert!(first.is_locked());
        assert_eq!(held(&file), bytes, "{claim:?}");
        first.give_up();
        assert!(!first.is_locked());
        assert_eq!(held(&file), [0u32; 0], "{claim:?}");
        drop(open(&file, claim).unwrap());
        drop(first);
        assert_eq!(held(&file), [0u32; 0], "{claim:?}");
    }
}

#[test]
fn what_conflicts_is_refused_by_name() {
    let write = "Failed to get \"write\" lock";
    let shared = "Failed to get shared \"write\" lock";
    let resize = "Failed to get \"resize\" lock";
    let cases = [
        (READER, [None, Some(write), None, Some(write), Some(write)]),
        (WRITER, [Some(shared), Some(write), None, Some(write), Some(write)]),
        (SHARED_READER, [None, None, None, None, None]),
        (SHARED_WRITER, [Some(shared), Some(shared), None, None, None]),
        (Claim::create(), [Some(shared), Some(resize), None, None, Some(resize)]),
    ];
    for (first, answers) in cases {
        let later = [READER, WRITER, SHARED_READER, SHARED_WRITER, Claim::create()];
        for (second, answer) in later.into_iter().zip(answers) {
            let file = file();
            let one = open(&file, first).unwrap();
            let two = open(&file, second);
            let found = two.as_ref().err().map(|error| match error {
                LockError::Conflict { conflict, .. } => conflict.to_string(),
                other => panic!("{other}"),
            });
            assert_eq!(found.as_deref(), answer, "{first:?}, then {second:?}");
            // One that was refused leaves nothing behind, and takes nothing of the other's away.
            drop(two);
            let bytes = held(&file);
            drop(one);
            let alone = open(&file, first).unwrap();
            assert_eq!(bytes, held(&file));
            drop(alone);
        }
    }
}

#[test]
fn the_holder_is_named() {
    let file = file();
    let _first = open(&file, WRITER).unwrap();
    let error = open(&file, WRITER).unwrap_err();
    let LockError::Conflict { holder, conflict, .. } = &error else { panic!("{error}") };
    assert_eq!(*conflict, Conflict::Use(Permissions::WRITE));
    assert_eq!(holder.as_ref().map(|holder| holder.pid), Some(std::process::id()));
    assert_eq!(
        error.to_string(),
        format!(
            "image: Failed to get \"write\" lock: the image is in use by this process ({})",
            std::process::id()
        )
    );
    assert_eq!(error.errno(), libc::EAGAIN);
}

#[test]
fn a_byte_that_is_held_alone_is_told() {
    let file = file();
    let alone = std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
    sys::hold(&alone, 201..202, Hold::Alone).unwrap();
    for (claim, text) in [
        (READER, "Failed to lock byte 201"),
        (SHARED_WRITER, "Failed to get \"write\" lock"),
        (Claim::create(), "Failed to get \"write\" lock"),
    ] {
        let LockError::Conflict { conflict, holder, .. } = open(&file, claim).unwrap_err() else {
            panic!("{claim:?}");
        };
        assert_eq!(conflict.to_string(), text);
        assert_eq!(holder.unwrap().pid, std::process::id());
    }
    open(&file, SHARED_READER).unwrap();
    drop(alone);
    open(&file, READER).unwrap();
}

#[test]
fn without_locks_nothing_is_held() {
    let file = file();
    let one = LockedFile::new(file.reopen().unwrap(), &"image".into(), LockMode::Off, WRITER);
    assert!(!one.unwrap().is_locked());
    assert_eq!(held(&file), [0u32; 0]);
}

#[test]
fn what_a_file_system_without_locks_answers_is_known() {
    for errno in [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL] {
        assert!(has_no_locks(errno));
    }
    for errno in [libc::EIO, libc::EAGAIN, libc::EACCES, libc::EBADF] {
        assert!(!has_no_locks(errno));
    }
    let error = LockError::Unavailable { path: "image".into(), errno: libc::ENOLCK };
    let text = error.to_string();
    assert!(text.starts_with("image: image locks are not possible here: No locks available"));
    assert!(text.ends_with("Lock mode auto goes on without any"), "{text}");
}

#[test]
fn modes_have_names() {
    for (word, mode) in [("on", LockMode::On), ("off", LockMode::Off), ("auto", LockMode::Auto)] {
        assert_eq!(word.parse(), Ok(mode));
    }
    assert!("yes".parse::<LockMode>().is_err());
}
