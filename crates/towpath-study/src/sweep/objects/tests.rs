use super::*;

#[test]
fn an_object_is_created_once_and_replaced_only_in_its_version() {
    let store = in_memory();
    let budget = ReadBudget::of(1_000);
    store.prepare().unwrap();
    assert!(store.list().unwrap().is_empty(), "the probe is removed");
    assert_eq!(store.read("x", &budget).unwrap(), None);
    assert!(!store.contains("x").unwrap());
    assert!(store.create("x", b"first").unwrap());
    assert!(!store.create("x", b"second").unwrap());
    let first = store.read("x", &budget).unwrap().unwrap();
    assert_eq!(first.bytes, b"first");
    assert!(store.replace("x", first.version.as_deref(), b"third").unwrap());
    assert!(!store.replace("x", first.version.as_deref(), b"fourth").unwrap());
    let listed = store.list().unwrap();
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["x"]);
    assert_eq!(listed["x"].bytes, 5);
    assert_eq!(store.read("x", &budget).unwrap().unwrap().bytes, b"third");
    store.remove("x").unwrap();
    assert!(!store.contains("x").unwrap());
}

#[test]
fn an_object_is_charged_to_the_budget_before_it_is_read() {
    let store = in_memory();
    store.create("x", &[0; 100]).unwrap();
    assert!(store.read("x", &ReadBudget::of(99)).is_err());
    assert!(store.read("x", &ReadBudget::of(100)).is_ok());
}

#[test]
fn the_reply_of_a_server_becomes_a_reason_without_its_text() {
    let found = |text: &str| reason(&Error::Generic { store: "S3", source: text.into() });
    let status = "Server returned non-2xx status code: ";
    for (text, expected) in [
        ("404 Not Found: <Error><Code>NoSuchBucket</Code>", StorageError::Missing),
        (
            "403 Forbidden: <Code>Signature<b>DoesNotMatch</Code><AWSAccessKeyId>AKID",
            StorageError::Denied("403 SignaturebDoesNotMatch".to_owned()),
        ),
        ("500 x: <Code>", StorageError::Status("500".to_owned())),
    ] {
        assert_eq!(found(&format!("{status}{text}")), expected, "{text}");
    }
    assert_eq!(found("refused"), StorageError::Unreachable("refused".to_owned()));
}
