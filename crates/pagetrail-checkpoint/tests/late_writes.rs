//! A store in an object store whose writer stood still with a request under way, for longer than
//! its lock holds: what it had sent arrives when another writer has taken over. Neither loses
//! anything but the checkpoint that was under way.

#[path = "common/mod.rs"]
mod common;

use async_trait::async_trait;
use common::{Model, contents};
use futures_core::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use pagetrail_checkpoint::storage::Bucket;
use pagetrail_checkpoint::{Error, Store, Writer, WriterOptions};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// As short as a live writer can bear on a busy machine: it renews six times as often, and gives up
/// after half of it.
const STALE: Duration = Duration::from_secs(4);

/// Nothing is held.
const OPEN: u8 = 0;
/// The next write of a manifest is held, and the process stands still from then on: its lock is not
/// remapped either.
const ARMED: u8 = 1;
const HELD: u8 = 2;

/// An object store, as a process sees it that may stand still in the middle of a request.
#[derive(Debug)]
struct Halting {
    inner: Arc<InMemory>,
    state: AtomicU8,
    /// Whether the write that is held replaces a manifest.
    replacing: bool,
}

impl fmt::Display for Halting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object store")
    }
}

impl Halting {
    fn new(inner: &Arc<InMemory>, replacing: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            state: AtomicU8::new(OPEN),
            replacing,
        })
    }

    fn wait_until_held(&self) {
        while self.state.load(Ordering::SeqCst) != HELD {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[async_trait]
impl ObjectStore for Halting {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let replaces = matches!(opts.mode, PutMode::Update(_));
        if location.as_ref().ends_with(".manifest") && replaces == self.replacing {
            let _ = self
                .state
                .compare_exchange(ARMED, HELD, Ordering::SeqCst, Ordering::SeqCst);
        }
        while self.state.load(Ordering::SeqCst) == HELD {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn open(objects: Arc<dyn ObjectStore>) -> Store {
    let bucket = Bucket::on(objects, Path::from("p"), "mem://p").unwrap();
    Store::create_on(Arc::new(bucket.stale_after(STALE))).unwrap()
}

fn model(seed: u64) -> Model {
    let mut model = Model::default();
    model.map(0, 20);
    (0..10).for_each(|page| model.write(page, contents(seed + page)));
    model
}

/// Lets the first writer stand still in `work`, gives its result once the second writer has done
/// `meanwhile`.
fn late<T: Send>(
    replacing: bool,
    prepare: impl FnOnce(&mut Writer),
    work: impl FnOnce(&mut Writer) -> T + Send,
    meanwhile: impl FnOnce(&Store, Writer, &dyn Fn()) -> Writer,
    after: impl FnOnce(T, &mut Writer, Writer),
) {
    let objects = Arc::new(InMemory::new());
    let halting = Halting::new(&objects, replacing);
    let store = open(Arc::clone(&halting) as _);
    let mut first = store.writer(WriterOptions::default()).unwrap();
    prepare(&mut first);
    halting.state.store(ARMED, Ordering::SeqCst);
    let other = open(Arc::clone(&objects) as _);
    let (first, outcome, second) = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let outcome = work(&mut first);
            (first, outcome)
        });
        halting.wait_until_held();
        let second = other.writer(WriterOptions::default()).unwrap();
        let arrives = || halting.state.store(OPEN, Ordering::SeqCst);
        let second = meanwhile(&other, second, &arrives);
        arrives();
        let (first, outcome) = working.join().unwrap();
        (first, outcome, second)
    });
    let mut first = first;
    after(outcome, &mut first, second);
    let found = other.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn a_late_manifest_replaces_none() {
    let (of_first, of_second) = (model(1), model(100));
    let first_at_one = of_first.clone();
    late(
        false,
        |first| drop(of_first.clone().checkpoint(first).unwrap()),
        |first| {
            let mut model = first_at_one;
            model.write(3, contents(77));
            let outcome = model.checkpoint(first);
            (model, outcome)
        },
        |store, mut second, _| {
            let mut model = of_second.clone();
            for number in 2..=4 {
                model.write(number, contents(200 + number));
                assert_eq!(model.checkpoint(&mut second).unwrap().number, number);
            }
            second.prune(3).unwrap();
            assert!(store.verify().unwrap().is_sound());
            model.assert_is(&mut store.image(4).unwrap());
            second
        },
        |(mut model, outcome), first, second| {
            outcome.unwrap_err();
            let store = second.store().clone();
            assert_eq!(store.numbers().unwrap(), [2, 3, 4]);
            for number in 2..=4 {
                store.image(number).unwrap();
            }
            // Another one is at work; when it has gone, the first has its lock again, and all that
            // it should have had.
            assert!(matches!(first.catch_up(), Err(Error::Busy { .. })));
            assert!(model.checkpoint(first).is_err());
            drop(second);
            first.catch_up().unwrap();
            let manifest = model.checkpoint(first).unwrap();
            assert_eq!((manifest.number, manifest.parent), (5, None));
            model.assert_is(&mut store.image(5).unwrap());
            assert_eq!(model.pages[&3], contents(77));
        },
    );
}

#[test]
fn a_late_manifest_that_comes_first_is_whole() {
    let before = model(1);
    late(
        false,
        |first| drop(before.clone().checkpoint(first).unwrap()),
        |first| {
            let mut model = before.clone();
            model.write(3, contents(77));
            let manifest = model.checkpoint(first).unwrap();
            assert_eq!(manifest.number, 2);
            model
        },
        |store, mut second, arrives| {
            arrives();
            while store.numbers().unwrap() != [1, 2] {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut of_second = model(100);
            let manifest = of_second.checkpoint(&mut second).unwrap();
            assert_eq!(manifest.number, 3);
            of_second.assert_is(&mut store.image(3).unwrap());
            second
        },
        |of_first, _, second| {
            of_first.assert_is(&mut second.store().image(2).unwrap());
        },
    );
}

#[test]
fn a_late_replacement_undoes_no_newer_one() {
    let oracle = model(1);
    let chain = |writer: &mut Writer| {
        let mut model = oracle.clone();
        for step in 0..4 {
            model.write(step, contents(300 + step));
            model.checkpoint(writer).unwrap();
        }
    };
    let mut last = oracle.clone();
    (0..4).for_each(|step| last.write(step, contents(300 + step)));
    late(
        true,
        chain,
        |first| first.prune(2).map(drop),
        |store, mut second, _| {
            second.prune(1).unwrap();
            assert!(store.verify().unwrap().is_sound());
            second
        },
        |outcome, _, second| {
            outcome.unwrap_err();
            assert_eq!(second.store().numbers().unwrap(), [4]);
            last.assert_is(&mut second.store().image(4).unwrap());
        },
    );
}
