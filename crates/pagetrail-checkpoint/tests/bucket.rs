//! A store in an object store: the same contents as in a directory, large packs in parts, and one
//! writer at a time, also after one was killed. The object store is `object_store`'s own in memory,
//! with conditional writes as S3 has them.

#[path = "common/mod.rs"]
mod common;

use common::{Model, PAGE, contents};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use pagetrail::PageRange;
use pagetrail_checkpoint::storage::{Bucket, Storage};
use pagetrail_checkpoint::{Compression, Error, Store, WriterOptions};
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As short as a live writer can bear on a busy machine: it renews six times as often, and gives up
/// after half of it.
const STALE: Duration = Duration::from_secs(4);

fn bucket(objects: &Arc<InMemory>) -> Arc<Bucket> {
    stale_after(objects, Duration::from_secs(600))
}

fn stale_after(objects: &Arc<InMemory>, stale: Duration) -> Arc<Bucket> {
    let objects: Arc<dyn ObjectStore> = Arc::clone(objects) as _;
    let bucket = Bucket::on(objects, Path::from("some/prefix"), "mem://some/prefix").unwrap();
    Arc::new(bucket.stale_after(stale))
}

#[test]
fn every_checkpoint_has_what_was_there() {
    let objects = Arc::new(InMemory::new());
    let mut random = fastrand::Rng::with_seed(1);
    let mut model = Model::default();
    model.map(0, 40);
    let mut oracle = Vec::new();
    for _ in 0..3 {
        let store = Store::create_on(bucket(&objects)).unwrap();
        let mut writer = store.writer(WriterOptions::default()).unwrap();
        for _ in 0..5 {
            model.change(&mut random);
            let manifest = model.checkpoint(&mut writer).unwrap();
            oracle.push((manifest.number, model.clone()));
        }
    }
    let store = Store::on(bucket(&objects)).unwrap();
    assert!(store.verify().unwrap().is_sound());
    for (number, model) in &oracle {
        model.assert_is(&mut store.image(*number).unwrap());
    }
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    writer.prune(4).unwrap();
    drop(writer);
    assert_eq!(store.numbers().unwrap(), [12, 13, 14, 15]);
    for (number, model) in oracle.iter().skip(11) {
        model.assert_is(&mut store.image(*number).unwrap());
    }
    assert!(store.verify().unwrap().is_sound());
    // Somebody else's objects are none of ours.
    let place = bucket(&objects);
    let names = place.names().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    for other in [
        "some/prefix/other",
        "some/prefix/below/1.pack",
        "some/pagetrail.store",
    ] {
        let other = Path::from(other);
        runtime.block_on(objects.put(&other, "x".into())).unwrap();
    }
    assert_eq!(place.names().unwrap(), names);
}

#[test]
fn a_pack_of_many_parts_comes_back() {
    let objects = Arc::new(InMemory::new());
    let store = Store::create_on(bucket(&objects)).unwrap();
    let options = WriterOptions {
        compression: Compression::None,
        ..WriterOptions::default()
    };
    let mut writer = store.writer(options).unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    let mut bytes = vec![0; 30 << 20];
    random.fill(&mut bytes);
    let range = PageRange::new(PAGE, PAGE + bytes.len() as u64).unwrap();
    let mut model = Model::default();
    model.map(1, 1 + bytes.len() as u64 / PAGE);
    let mut draft = writer.draft(PAGE as u32);
    draft.put(&[range], &bytes).unwrap();
    let description = pagetrail_checkpoint::Description {
        mappings: model.mappings(),
        ..Default::default()
    };
    let manifest = draft.publish(description).unwrap();
    assert!(manifest.cost.stored_bytes > bytes.len() as u64);
    let mut image = store.image(manifest.number).unwrap();
    let mut read = vec![0; bytes.len()];
    image.read(range, &mut read).unwrap();
    assert!(read == bytes);
    // And here and there a page.
    for _ in 0..100 {
        let at = random.usize(0..bytes.len() / PAGE as usize) * PAGE as usize;
        let start = PAGE + at as u64;
        let page = PageRange::new(start, start + PAGE).unwrap();
        image.read(page, &mut read[..PAGE as usize]).unwrap();
        assert!(read[..PAGE as usize] == bytes[at..][..PAGE as usize]);
    }
}

#[test]
fn there_is_one_writer_and_one_left_behind_is_taken_over() {
    let objects = Arc::new(InMemory::new());
    let store = Store::create_on(stale_after(&objects, STALE)).unwrap();
    let other = Store::create_on(stale_after(&objects, STALE)).unwrap();
    let options = WriterOptions::default;
    let writer = store.writer(options()).unwrap();
    let busy = other.writer(options());
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    drop(writer);
    // Given back, nobody has to wait.
    let patient = Store::on(bucket(&objects)).unwrap();
    let began = Instant::now();
    drop(patient.writer(options()).unwrap());
    assert!(began.elapsed() < Duration::from_secs(600));

    // A writer that was killed renews nothing.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let lock = Path::from("some/prefix/lock");
    runtime
        .block_on(objects.put(&lock, "of the dead".into()))
        .unwrap();
    let began = Instant::now();
    let mut writer = other.writer(options()).unwrap();
    assert!(began.elapsed() >= STALE);

    // A writer that finds its lock in other hands writes no more.
    let mut model = Model::default();
    model.map(0, 10);
    model.write(1, contents(1));
    model.checkpoint(&mut writer).unwrap();
    runtime
        .block_on(objects.put(&lock, "of another".into()))
        .unwrap();
    std::thread::sleep(STALE);
    model.write(2, contents(2));
    let refused = model.checkpoint(&mut writer).unwrap_err();
    assert!(refused.to_string().contains("cannot write"), "{refused}");
    drop(writer);
    let kept = runtime.block_on(async { objects.get(&lock).await.unwrap().bytes().await.unwrap() });
    assert_eq!(kept, "of another");
    assert!(other.verify().unwrap().is_sound());
    assert_eq!(other.numbers().unwrap(), [1]);
}

#[test]
fn what_is_no_place_is_refused() {
    for url in ["s3://", "gopher://x/y", "s3:///x", "https://example.com/x"] {
        let refused = Store::open(std::path::Path::new(url)).unwrap_err();
        assert!(refused.to_string().contains(url), "{refused}");
    }
}

/// The test is its own child, which has what only an environment can say: where the service is.
#[test]
fn a_service_is_spoken_to_by_tls() {
    const PLACE: &str = "s3://bucket/prefix";
    if std::env::var_os("AWS_ENDPOINT").is_some() {
        // Nobody answers: the parent ends this.
        let _ = Store::open(std::path::Path::new(PLACE));
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_service_is_spoken_to_by_tls"])
        .env(
            "AWS_ENDPOINT",
            format!("https://{}", listener.local_addr().unwrap()),
        )
        .envs([
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "key"),
        ])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut request = loop {
        match listener.accept() {
            Ok((request, _)) => break request,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "it ended without a request");
        std::thread::sleep(Duration::from_millis(5));
    };
    request.set_nonblocking(false).unwrap();
    let mut record = [0; 6];
    let read = request.read_exact(&mut record);
    child.kill().unwrap();
    child.wait().unwrap();
    read.unwrap();
    // RFC 8446, sections 5.1 and 4: a record of a handshake, in which the client says hello.
    assert_eq!((record[0], record[1], record[5]), (22, 3, 1));
}
