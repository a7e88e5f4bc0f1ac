//! Promises of the public interface that the compiler checks: what may be sent to and shared with
//! other threads, and what an error says of itself.

use pagetrail::{
    Attached, Capabilities, Error, ErrorKind, Heaps, Memory, PageRange, PageSet, Region, Round,
    Status, Subpages, Target, Technique, UntrackedRegion, Watch, WatchBuilder,
};

fn is_send<T: Send>() {}

fn is_send_and_sync<T: Send + Sync>() {}

#[test]
fn a_watch_can_move_to_another_thread_and_results_can_be_shared() {
    is_send::<Watch>();
    is_send::<WatchBuilder>();
    is_send::<Attached>();
    is_send::<Target>();
    is_send_and_sync::<Round<'_>>();
    is_send_and_sync::<PageRange>();
    is_send_and_sync::<PageSet>();
    is_send_and_sync::<Subpages>();
    is_send_and_sync::<Heaps>();
    is_send_and_sync::<Memory>();
    is_send_and_sync::<Region>();
    is_send_and_sync::<UntrackedRegion>();
    is_send_and_sync::<Capabilities>();
    is_send_and_sync::<Status>();
    is_send_and_sync::<Error>();
}

#[test]
fn errors_have_a_kind_and_the_number_of_a_failed_call() {
    let own = Target::process(std::process::id()).unwrap_err();
    assert_eq!((own.kind(), own.errno()), (ErrorKind::InvalidTarget, None));
    let none = Target::process(0).unwrap_err();
    assert_eq!((none.kind(), none.errno()), (ErrorKind::NotFound, None));
    let program = std::process::Command::new("/nowhere/program");
    let watch = Watch::builder().target(Target::command(program));
    let missing = watch.technique(Technique::None).start().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let no_pidfd = Target::pidfd(file.into()).unwrap_err();
    assert_eq!(no_pidfd.kind(), ErrorKind::System);
    assert!(no_pidfd.to_string().contains("not a pidfd"), "{no_pidfd}");
}

#[test]
fn the_status_of_each_technique_is_its_own() {
    let capabilities = Capabilities::probe();
    let statuses: Vec<_> = capabilities.iter().collect();
    assert_eq!(statuses.len(), Technique::ALL.len());
    for (technique, status) in statuses {
        assert_eq!(capabilities.status(technique), status);
        assert_eq!(Capabilities::probe_one(technique), status);
    }
}
