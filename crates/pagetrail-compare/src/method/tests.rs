//! The method on a machine that makes times up.

use super::*;
use crate::results::Measured;
use crate::testing::{Fake, setting};

fn plan(environments: &[&str], length: Length) -> Plan {
    let parse = |word: &&str| word.parse::<Environment>().expect("an environment");
    Plan {
        against: Environment::Native,
        environments: environments.iter().map(parse).collect(),
        suites: vec![PlannedSuite {
            name: "program".into(),
            tests: vec!["sleep".into()],
        }],
        length,
        seed: 24,
        probe: false,
    }
}

fn compared(plan: &Plan, fake: &mut Fake) -> Comparison {
    compare(plan, setting(), fake, &mut |_| {}).expect("the fake never fails")
}

fn measured<'a>(comparison: &'a Comparison, environment: &str) -> &'a Measured {
    let test = &comparison.suites[0].tests[0];
    test.of(environment).expect("it was measured")
}

#[test]
fn a_known_slowdown_is_measured_as_itself() {
    // With many seeds: the interval must hold the truth as often as it says, 96.9 % for 6.
    let (mut held, mut differ, mut sum) = (0, 0, 0.0);
    for seed in 0..400 {
        let mut plan = plan(&["vm", "heap:8"], Length::Rounds(6));
        plan.seed = seed;
        let mut fake = Fake::new(seed).slow("vm", 1.3).slow("heap:8", 1.0);
        let comparison = compared(&plan, &mut fake);
        let vm = measured(&comparison, "vm");
        assert!(!vm.within_noise, "seed {seed}: {vm:?}");
        assert!((vm.ratio.median - 1.3).abs() < 0.08, "seed {seed}: {vm:?}");
        sum += vm.ratio.median;
        held += u32::from((vm.ratio.low..=vm.ratio.high).contains(&1.3));
        let heap = measured(&comparison, "heap:8");
        differ += u32::from(!heap.within_noise);
    }
    assert!((sum / 400.0 - 1.3).abs() < 0.004, "{}", sum / 400.0);
    assert!(differ <= 4, "{differ} of 400 called different and are not");
    assert!(
        (376..400).contains(&held),
        "{held} of 400 intervals hold 1.3"
    );
}

#[test]
fn few_rounds_say_nothing_about_noise() {
    let ratio_of = |rounds| {
        let mut fake = Fake::new(1).slow("vm", 3.0);
        let comparison = compared(&plan(&["vm"], Length::Rounds(rounds)), &mut fake);
        measured(&comparison, "vm").clone()
    };
    for rounds in 1..=5 {
        let few = ratio_of(rounds);
        assert!(few.within_noise && few.too_few_rounds && few.ratio.median > 2.5);
    }
    let enough = ratio_of(6);
    assert!(!enough.within_noise && !enough.too_few_rounds);
}

#[test]
fn a_machine_that_grows_slower_does_so_for_all() {
    // Each run is 1 % slower than the one before: after 100 runs 2.7 times.
    let mut fake = Fake::new(1).slow("vm", 1.3).drifting(1.01);
    let comparison = compared(&plan(&["vm"], Length::Rounds(30)), &mut fake);
    let vm = measured(&comparison, "vm");
    assert!((vm.ratio.median - 1.3).abs() < 0.03, "{vm:?}");
    assert!(vm.time_ns.high > vm.time_ns.low * 1.15, "{vm:?}");
}

#[test]
fn orders_are_drawn_anew_and_follow_from_the_seed() {
    let runs = |seed| {
        let mut plan = plan(&["vm", "heap:8"], Length::Rounds(10));
        plan.seed = seed;
        let mut fake = Fake::new(1);
        compared(&plan, &mut fake);
        fake.runs
    };
    let first = runs(1);
    // Warm-up, noise in pairs, rounds.
    assert_eq!(first.len(), 3 + 20 + 30);
    assert_eq!(first[..3], ["native", "vm", "heap:8"]);
    assert!(first[3..23].iter().all(|run| run == "native"));
    let rounds: Vec<_> = first[23..].chunks(3).collect();
    assert!(rounds.iter().any(|round| *round != rounds[0]));
    for round in rounds {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(round, ["heap:8", "native", "vm"]);
    }
    assert_eq!(runs(1), first);
    assert_ne!(runs(2), first);
}

#[test]
fn a_time_is_kept_and_what_remains_is_known() {
    let plan = plan(&["vm"], Length::Time(Duration::from_secs(10)));
    // 100 ms natively.
    let mut fake = Fake::new(1).slow("vm", 1.3);
    let mut remaining = Vec::new();
    let comparison = compare(&plan, setting(), &mut fake, &mut |progress| {
        remaining.extend(progress.remaining);
    });
    let runs = comparison.expect("it never fails").suites[0].tests[0].runs;
    // 230 ms of warm-up, then 430 ms for each round with its noise.
    assert!((21..=23).contains(&runs), "{runs}");
    let end = fake.now().as_secs_f64();
    assert!((9.0..11.0).contains(&end), "{end}");
    let first = remaining[0].as_secs_f64();
    assert!((first - (end - 0.23)).abs() < 0.5, "{first} of {end}");
    assert!(
        remaining
            .iter()
            .rev()
            .take(1)
            .all(|left| left.as_secs_f64() < 0.2)
    );
    let short = Length::Time(Duration::from_millis(1));
    let comparison = compared(
        &Plan {
            length: short,
            ..plan
        },
        &mut Fake::new(1),
    );
    assert_eq!(comparison.suites[0].tests[0].runs, ROUNDS_MIN);
}

#[test]
fn who_is_not_here_is_a_row_and_the_others_go_on() {
    let mut fake = Fake::new(1).slow("vm", 1.3).missing("heap:8", "no library");
    let comparison = compared(&plan(&["heap:8", "vm"], Length::Rounds(3)), &mut fake);
    assert_eq!(comparison.absent[0].name, "heap:8");
    assert_eq!(comparison.absent[0].reason, "no library");
    assert!(comparison.has_ratios() && !comparison.has_differences());
    assert!(comparison.suites[0].tests[0].of("heap:8").is_none());
    // Nothing is measured that cannot be compared.
    let mut fake = Fake::new(1).missing("vm", "no KVM");
    let comparison = compared(&plan(&["vm"], Length::Rounds(3)), &mut fake);
    assert_eq!(fake.runs, ["native"]);
    assert_eq!(comparison.absent[0].name, "vm");
    assert!(comparison.suites.is_empty() && !comparison.has_ratios());
    let mut fake = Fake::new(1).missing("native", "no such test");
    let comparison = compared(&plan(&["vm"], Length::Rounds(3)), &mut fake);
    assert_eq!(comparison.absent[0].name, "sleep");
    assert!(comparison.suites.is_empty() && !comparison.has_ratios());
    let against = Plan {
        against: "heap:8".parse().expect("it is one"),
        ..plan(&["vm"], Length::Rounds(3))
    };
    let mut fake = Fake::new(1).missing("heap:8", "no library");
    let comparison = compared(&against, &mut fake);
    assert_eq!(comparison.absent[0].name, "sleep in heap:8");
}

#[test]
fn a_test_that_fails_somewhere_is_named_and_not_timed() {
    let mut fake = Fake::new(1).failing("vm").slow("heap:8", 1.3);
    let comparison = compared(&plan(&["vm", "heap:8"], Length::Rounds(3)), &mut fake);
    let test = &comparison.suites[0].tests[0];
    assert_eq!(test.failures[0].environment, "vm");
    assert_eq!(test.failures[0].reason, "it is wrong");
    assert!(test.of("vm").is_none() && test.of("heap:8").is_some());
    assert!(comparison.has_differences());
}

#[test]
fn a_test_that_fails_where_it_ran_before_is_left_out_alone() {
    // In the warm-up there are two runs of each, then noise, two of each in each of three rounds.
    for runs in [4, 5, 11, 16, 20] {
        let mut plan = plan(&["vm"], Length::Rounds(3));
        plan.suites[0].name = "net".into();
        plan.suites[0].tests = vec!["tcp".into(), "udp".into()];
        let mut fake = Fake::new(1).failing("native").after(runs);
        let comparison = compared(&plan, &mut fake);
        assert!(!comparison.has_ratios(), "after {runs}");
        let said = |absent: &crate::results::Absent| {
            absent.name.starts_with("net/") && absent.reason == "it has failed: it is wrong"
        };
        assert_eq!(comparison.absent.len(), 2, "after {runs}");
        assert!(comparison.absent.iter().all(said));
    }
}

#[test]
fn a_program_that_behaves_differently_is_named() {
    let mut fake = Fake::new(1).output("vm", "other").slow("heap:8", 1.0);
    let comparison = compared(&plan(&["vm", "heap:8"], Length::Rounds(3)), &mut fake);
    assert!(comparison.has_differences());
    let differs = measured(&comparison, "vm").differs.as_deref();
    assert_eq!(
        differs,
        Some("its standard output differs: 5 bytes instead of 4")
    );
    assert_eq!(measured(&comparison, "heap:8").differs, None);
    // A program that never says the same twice is not accused of it.
    let mut fake = Fake::new(1).output("vm", "other").output("native", "");
    let comparison = compared(&plan(&["vm"], Length::Rounds(3)), &mut fake);
    assert!(!comparison.has_differences());
    assert_eq!(
        comparison.suites[0].tests[0].unstable.as_deref(),
        Some("standard output")
    );
}

#[test]
fn counters_of_virtual_machines_are_in_the_result_and_in_a_table() {
    let mut fake = Fake::new(3)
        .counting("kvm", "exits", 120)
        .counting("kvm", "pages_4k", -12)
        .counting("kvm:shadow", "exits", 98_765)
        .counting("kvm:shadow", "mmu_pte_write", 4_096);
    let environments = ["kvm", "kvm:shadow"];
    let comparison = compared(&plan(&environments, Length::Rounds(6)), &mut fake);
    assert!(measured(&comparison, "native").kvm.is_empty());
    assert_eq!(measured(&comparison, "kvm:shadow").kvm["exits"], 98_765.0);
    let mut text = Vec::new();
    crate::text::write(&comparison, &[], &mut text).expect("a Vec takes all");
    let text = String::from_utf8(text).expect("UTF-8");
    let (_, table) = text
        .split_once("Counters of KVM: program")
        .expect("a table");
    let row = |name: &str| {
        let line = table.lines().find(|line| line.contains(name));
        let words = line.unwrap_or_default().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("counter"), "test counter kvm kvm:shadow");
    assert_eq!(row("exits"), "sleep exits 120 98,765");
    assert_eq!(row("mmu_pte_write"), "mmu_pte_write 0 4,096");
    assert_eq!(row("pages_4k"), "pages_4k -12 0");
}

#[test]
fn a_test_that_means_nothing_somewhere_leaves_its_environment_to_others() {
    let mut plan = plan(&["kvm", "vm"], Length::Rounds(6));
    plan.suites[0].tests.push("other".into());
    let mut fake = Fake::new(3).apart("kvm");
    let comparison = compared(&plan, &mut fake);
    let names: Vec<&str> = comparison
        .absent()
        .iter()
        .map(|absent| absent.name.as_str())
        .collect();
    assert_eq!(names, ["program/sleep in kvm", "program/other in kvm"]);
    assert!(!comparison.has_differences());
    assert!(comparison.suites[0].tests[1].of("vm").is_some());
}
