//! [`Memory`]: where fast and slow memory are, and how pages move between them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use pagetrail_report::size::Size;
use serde::{Deserialize, Deserializer, de};

use super::parsed;

const NODES_MAX: usize = 64;

/// Where memory is, and how it is moved.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// The nodes that fast memory is on, the first to be filled first.
    #[serde(deserialize_with = "nodes")]
    pub fast_node: Vec<u32>,
    /// Where cold pages go.
    pub slow: Slow,
    /// How many threads move pages of a process at a time.
    pub threads: usize,
    /// How many pages one call moves.
    pub batch: usize,
    /// In a second, for each process.
    #[serde(deserialize_with = "parsed")]
    pub bandwidth: Option<Size>,
    /// Nothing is moved while tasks wait for memory for a larger share of the time, in percent.
    pub pressure_max_percent: Option<u8>,
    /// Whether reads and writes weigh by what the first fast and the first slow node were measured
    /// to take, and not as the policy says.
    pub measure_weights: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            fast_node: vec![0],
            slow: Slow::Nodes(vec![1]),
            threads: 4,
            batch: 512,
            bandwidth: None,
            pressure_max_percent: None,
            measure_weights: false,
        }
    }
}

/// Where slow memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// On nodes, the first to be filled first.
    Nodes(Vec<u32>),
    /// In swap, or zram.
    Swap,
}

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Nodes(Nodes),
            Word(String),
        }
        match Raw::deserialize(deserializer) {
            Ok(Raw::Nodes(nodes)) => Ok(Self::Nodes(nodes.list())),
            Ok(Raw::Word(word)) if word == "swap" => Ok(Self::Swap),
            _ => Err(de::Error::custom(
                "slow is the number of a node, a list of them, or \"swap\"",
            )),
        }
    }
}

/// One node, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Nodes {
    One(u32),
    Several(Vec<u32>),
}

impl Nodes {
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(node) => vec![node],
            Self::Several(nodes) => nodes,
        }
    }
}

fn nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    let nodes = Nodes::deserialize(deserializer);
    let wrong = |_| de::Error::custom("fast_node is the number of a node, or a list of them");
    nodes.map(Nodes::list).map_err(wrong)
}

impl Memory {
    pub(super) fn check(&self) -> Result<()> {
        let Memory {
            fast_node,
            slow,
            threads,
            batch,
            pressure_max_percent,
            measure_weights,
            ..
        } = self;
        ensure!(
            pressure_max_percent.is_none_or(|percent| (1..=100).contains(&percent)),
            "pressure_max_percent must be 1 to 100"
        );
        ensure!(
            !measure_weights || *slow != Slow::Swap,
            "measure_weights is for slow memory on a node, and it is in swap: leave measure_weights out"
        );
        let none = Vec::new();
        let slow_nodes = match slow {
            Slow::Nodes(nodes) => nodes,
            Slow::Swap => &none,
        };
        let is_list = |nodes: &[u32]| (1..=NODES_MAX).contains(&nodes.len());
        ensure!(
            is_list(fast_node) && (*slow == Slow::Swap || is_list(slow_nodes)),
            "a list of nodes has between 1 and {NODES_MAX}"
        );
        let mut known = BTreeSet::new();
        for node in fast_node.iter().chain(slow_nodes) {
            ensure!(
                known.insert(node),
                "fast and slow memory are on the same node, or one is named twice: {node}"
            );
        }
        ensure!((1..=64).contains(threads), "threads must be 1 to 64");
        ensure!((1..=65_536).contains(batch), "batch must be 1 to 65536");
        Ok(())
    }
}
