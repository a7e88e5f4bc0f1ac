//! [`page_rank`], [`breadth_first`], [`shortest_paths`] and [`betweenness`]: graph kernels that
//! run, and count what they touch.
//!
//! The graph is R-MAT's (the one of graph500): a few vertices have most of the edges. Its arrays
//! lie next to each other in the order in which such a program makes them: offsets, edges, and what
//! is computed for each vertex. Neighbouring elements that are used one after the other count as
//! one access per cache line of 64 bytes, and every other use counts as one; there is no other
//! cache.

use fastrand::Rng;

use super::program::{Accesses, Recorded};

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;
/// Edges for each vertex.
const EDGES: usize = 16;
/// Windows of a pass over the graph.
const WINDOWS_PER_PASS: u64 = 20;

/// An array of the program: where it begins, and how large an element is.
#[derive(Clone, Copy)]
struct Array {
    start: usize,
    element_bytes: usize,
}

/// Counts accesses window by window.
struct Tracer {
    pages: usize,
    windows: Vec<Accesses>,
    made: u64,
    per_window: u64,
    /// The line of each array that was used last.
    last_lines: Vec<(usize, usize)>,
}

/// Vertices and their neighbours, and where the arrays are.
struct Graph {
    offsets: Vec<usize>,
    edges: Vec<u32>,
    offsets_at: Array,
    edges_at: Array,
    /// Arrays with 8 bytes for each vertex.
    vertices_at: Vec<Array>,
    pages: usize,
}

impl Graph {
    /// 2^`scale` vertices, of which each edge joins two by chance, in the proportions of graph500,
    /// and so many arrays for what is computed.
    fn new(scale: u32, seed: u64, arrays: usize) -> Self {
        let vertices = 1usize << scale;
        let mut random = Rng::with_seed(seed);
        let mut pairs: Vec<(u32, u32)> = (0..vertices * EDGES)
            .map(|_| {
                (0..scale).fold((0, 0), |(from, to), _| {
                    let (low, right) = match random.u32(0..100) {
                        0..57 => (0, 0),
                        57..76 => (0, 1),
                        76..95 => (1, 0),
                        _ => (1, 1),
                    };
                    (from << 1 | low, to << 1 | right)
                })
            })
            .collect();
        pairs.sort_unstable();
        let mut offsets = vec![0; vertices + 1];
        for (from, _) in &pairs {
            offsets[*from as usize + 1] += 1;
        }
        for vertex in 0..vertices {
            offsets[vertex + 1] += offsets[vertex];
        }
        let mut end = 0;
        let mut array = |elements: usize, element_bytes: usize| {
            let start = end;
            end += (elements * element_bytes).next_multiple_of(PAGE_BYTES);
            Array {
                start,
                element_bytes,
            }
        };
        let offsets_at = array(vertices + 1, 8);
        let edges_at = array(pairs.len(), 4);
        let vertices_at = (0..arrays).map(|_| array(vertices, 8)).collect();
        Self {
            offsets,
            edges: pairs.into_iter().map(|(_, to)| to).collect(),
            offsets_at,
            edges_at,
            vertices_at,
            pages: end / PAGE_BYTES,
        }
    }

    fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The edges of a vertex, by their places.
    fn edges_of(&self, vertex: usize) -> std::ops::Range<usize> {
        self.offsets[vertex]..self.offsets[vertex + 1]
    }

    /// Where a search begins: most vertices have no edge, and none begins there.
    fn root(&self, random: &mut Rng) -> usize {
        loop {
            let vertex = random.usize(0..self.vertices());
            if !self.edges_of(vertex).is_empty() {
                return vertex;
            }
        }
    }

    fn tracer(&self, per_window: u64) -> Tracer {
        Tracer {
            pages: self.pages,
            windows: Vec::new(),
            made: 0,
            per_window,
            last_lines: Vec::new(),
        }
    }
}

impl Tracer {
    fn touch(&mut self, array: Array, index: usize, write: bool) {
        let address = array.start + index * array.element_bytes;
        let line = address / LINE_BYTES;
        match self
            .last_lines
            .iter_mut()
            .find(|(start, _)| *start == array.start)
        {
            Some((_, last)) if *last == line && !write => return,
            Some((_, last)) => *last = line,
            None => self.last_lines.push((array.start, line)),
        }
        if self.made.is_multiple_of(self.per_window) {
            self.windows.push(Accesses {
                reads: vec![0; self.pages],
                writes: vec![0; self.pages],
            });
        }
        self.made += 1;
        if let Some(window) = self.windows.last_mut() {
            let counts = if write {
                &mut window.writes
            } else {
                &mut window.reads
            };
            counts[address / PAGE_BYTES] += 1;
        }
    }

    fn read(&mut self, array: Array, index: usize) {
        self.touch(array, index, false);
    }

    fn write(&mut self, array: Array, index: usize) {
        self.touch(array, index, true);
    }

    fn finish(self) -> Recorded {
        Recorded::new(self.pages, self.windows)
    }
}

/// PageRank, pulling, so many times over a graph of 2^`scale` vertices; the sum of all ranks is
/// checked at the end.
pub fn page_rank(scale: u32, passes: u32, seed: u64) -> Recorded {
    const DAMPING: f64 = 0.85;
    let graph = Graph::new(scale, seed, 2);
    let vertices = graph.vertices();
    // Most of what a pass does is to read a rank for each edge.
    let mut tracer = graph.tracer((graph.edges.len() as u64 + vertices as u64) / WINDOWS_PER_PASS);
    let mut degrees = vec![0u32; vertices];
    graph.edges.iter().for_each(|to| degrees[*to as usize] += 1);
    let mut given = vec![1.0 / vertices as f64; vertices];
    let (given_at, next_at) = (graph.vertices_at[0], graph.vertices_at[1]);
    for _ in 0..passes {
        let mut next = vec![0.0; vertices];
        let mut lost = 0.0;
        for vertex in 0..vertices {
            tracer.read(graph.offsets_at, vertex);
            let mut sum = 0.0;
            for edge in graph.edges_of(vertex) {
                tracer.read(graph.edges_at, edge);
                let from = graph.edges[edge] as usize;
                tracer.read(given_at, from);
                sum += given[from] / f64::from(degrees[from]);
            }
            tracer.write(next_at, vertex);
            next[vertex] = DAMPING * sum;
            if degrees[vertex] == 0 {
                lost += given[vertex];
            }
        }
        let base = (1.0 - DAMPING + DAMPING * lost) / vertices as f64;
        for vertex in 0..vertices {
            tracer.read(next_at, vertex);
            tracer.write(given_at, vertex);
            given[vertex] = next[vertex] + base;
        }
    }
    let sum: f64 = given.iter().sum();
    assert!((sum - 1.0).abs() < 1e-6, "ranks sum to {sum}");
    tracer.finish()
}

/// Breadth-first search from so many vertices, one after the other, of a graph of 2^`scale`
/// vertices.
pub fn breadth_first(scale: u32, searches: u32, seed: u64) -> Recorded {
    const UNSEEN: u32 = u32::MAX;
    let graph = Graph::new(scale, seed, 2);
    let vertices = graph.vertices();
    let mut tracer = graph.tracer((graph.edges.len() as u64 + vertices as u64) / WINDOWS_PER_PASS);
    let (parents_at, queue_at) = (graph.vertices_at[0], graph.vertices_at[1]);
    let mut random = Rng::with_seed(seed);
    for _ in 0..searches {
        let mut parents = vec![UNSEEN; vertices];
        (0..vertices).for_each(|vertex| tracer.write(parents_at, vertex));
        let root = graph.root(&mut random);
        parents[root] = root as u32;
        let mut queue = vec![root as u32];
        let mut next = 0;
        while let Some(vertex) = queue.get(next).copied() {
            tracer.read(queue_at, next);
            next += 1;
            tracer.read(graph.offsets_at, vertex as usize);
            for edge in graph.edges_of(vertex as usize) {
                tracer.read(graph.edges_at, edge);
                let to = graph.edges[edge];
                tracer.read(parents_at, to as usize);
                if parents[to as usize] == UNSEEN {
                    parents[to as usize] = vertex;
                    tracer.write(parents_at, to as usize);
                    tracer.write(queue_at, queue.len());
                    queue.push(to);
                }
            }
        }
    }
    tracer.finish()
}

/// Shortest paths from so many vertices, one after the other, of a graph of 2^`scale` vertices: by
/// Bellman and Ford, with a queue of the vertices that have come closer. An edge is between 1 and
/// 64 long, by its place.
pub fn shortest_paths(scale: u32, searches: u32, seed: u64) -> Recorded {
    let graph = Graph::new(scale, seed, 3);
    let vertices = graph.vertices();
    let mut tracer = graph.tracer((graph.edges.len() as u64 + vertices as u64) / WINDOWS_PER_PASS);
    let [distances_at, waits_at, queue_at] = [0, 1, 2].map(|index| graph.vertices_at[index]);
    let length = |edge: usize| 1 + (edge as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 64;
    let mut random = Rng::with_seed(seed);
    for _ in 0..searches {
        let mut distances = vec![u64::MAX; vertices];
        let mut waits = vec![false; vertices];
        for vertex in 0..vertices {
            tracer.write(distances_at, vertex);
            tracer.write(waits_at, vertex);
        }
        let root = graph.root(&mut random);
        distances[root] = 0;
        let mut queue = std::collections::VecDeque::from([root]);
        let mut taken = 0;
        while let Some(vertex) = queue.pop_front() {
            // As long as the graph has vertices, and goes round.
            tracer.read(queue_at, taken % vertices);
            taken += 1;
            tracer.write(waits_at, vertex);
            waits[vertex] = false;
            tracer.read(distances_at, vertex);
            tracer.read(graph.offsets_at, vertex);
            for edge in graph.edges_of(vertex) {
                tracer.read(graph.edges_at, edge);
                let to = graph.edges[edge] as usize;
                tracer.read(distances_at, to);
                let by_here = distances[vertex] + length(edge);
                if by_here >= distances[to] {
                    continue;
                }
                distances[to] = by_here;
                tracer.write(distances_at, to);
                tracer.read(waits_at, to);
                if !std::mem::replace(&mut waits[to], true) {
                    tracer.write(waits_at, to);
                    tracer.write(queue_at, (taken + queue.len()) % vertices);
                    queue.push_back(to);
                }
            }
        }
        for vertex in (0..vertices).filter(|vertex| distances[*vertex] != u64::MAX) {
            for edge in graph.edges_of(vertex) {
                let to = graph.edges[edge] as usize;
                let is_shortest = distances[to] <= distances[vertex] + length(edge);
                assert!(is_shortest, "{vertex} is nearer to {to}");
            }
        }
    }
    tracer.finish()
}

/// Betweenness of all vertices of a graph of 2^`scale` vertices, by Brandes, for the paths from so
/// many vertices.
pub fn betweenness(scale: u32, sources: u32, seed: u64) -> Recorded {
    const UNSEEN: u32 = u32::MAX;
    let graph = Graph::new(scale, seed, 5);
    let vertices = graph.vertices();
    let mut tracer = graph.tracer((graph.edges.len() as u64 + vertices as u64) / WINDOWS_PER_PASS);
    let [levels_at, paths_at, order_at, shares_at, sums_at] =
        [0, 1, 2, 3, 4].map(|index| graph.vertices_at[index]);
    let mut random = Rng::with_seed(seed);
    let mut sums = vec![0.0; vertices];
    for _ in 0..sources {
        let (mut levels, mut paths) = (vec![UNSEEN; vertices], vec![0.0; vertices]);
        let mut shares = vec![0.0; vertices];
        for vertex in 0..vertices {
            for array in [levels_at, paths_at, shares_at] {
                tracer.write(array, vertex);
            }
        }
        let root = graph.root(&mut random);
        (levels[root], paths[root]) = (0, 1.0);
        let mut order = vec![root];
        let mut next = 0;
        while let Some(vertex) = order.get(next).copied() {
            tracer.read(order_at, next);
            next += 1;
            tracer.read(graph.offsets_at, vertex);
            tracer.read(levels_at, vertex);
            for edge in graph.edges_of(vertex) {
                tracer.read(graph.edges_at, edge);
                let to = graph.edges[edge] as usize;
                tracer.read(levels_at, to);
                if levels[to] == UNSEEN {
                    levels[to] = levels[vertex] + 1;
                    tracer.write(levels_at, to);
                    tracer.write(order_at, order.len());
                    order.push(to);
                }
                if levels[to] == levels[vertex] + 1 {
                    paths[to] += paths[vertex];
                    tracer.read(paths_at, vertex);
                    tracer.write(paths_at, to);
                }
            }
        }
        // From the farthest back: which share of the paths to what lies beyond goes through here.
        for (place, vertex) in order.iter().copied().enumerate().rev() {
            tracer.read(order_at, place);
            for edge in graph.edges_of(vertex) {
                tracer.read(graph.edges_at, edge);
                let to = graph.edges[edge] as usize;
                tracer.read(levels_at, to);
                if levels[to] == levels[vertex] + 1 {
                    tracer.read(paths_at, to);
                    tracer.read(shares_at, to);
                    shares[vertex] += paths[vertex] / paths[to] * (1.0 + shares[to]);
                }
            }
            tracer.write(shares_at, vertex);
            if vertex != root {
                sums[vertex] += shares[vertex];
                tracer.write(sums_at, vertex);
            }
        }
        // Every vertex that was reached is the end of one path, shared by the ways to it.
        let reached = (order.len() - 1) as f64;
        let off = (shares[root] - reached).abs();
        assert!(
            off < 1e-6 * reached.max(1.0),
            "{off} of {reached} paths are lost"
        );
    }
    tracer.finish()
}

#[cfg(test)]
mod tests {
    use super::super::program::Program;
    use super::*;

    /// Which part of all accesses the pages of some arrays get.
    fn part(program: &mut Recorded, pages: std::ops::Range<usize>) -> f64 {
        let (mut all, mut these) = (0u64, 0u64);
        for _ in 0..program.windows() {
            let accesses = program.run().unwrap();
            for (page, (reads, writes)) in accesses.reads.iter().zip(&accesses.writes).enumerate() {
                let count = u64::from(*reads) + u64::from(*writes);
                all += count;
                these += if pages.contains(&page) { count } else { 0 };
            }
        }
        these as f64 / all as f64
    }

    #[test]
    fn most_accesses_are_to_what_is_kept_for_vertices() {
        // 4096 vertices: 9 pages of offsets, 64 of edges, 8 and 8 for each vertex.
        let mut rank = page_rank(12, 2, 1);
        assert_eq!(rank.pages(), 9 + 64 + 16);
        assert!(rank.windows() as u64 > WINDOWS_PER_PASS);
        assert!(part(&mut rank, 73..89) > 0.8);
        let mut search = breadth_first(12, 2, 1);
        assert_eq!(search.pages(), rank.pages());
        assert!(part(&mut search, 73..89) > 0.7);
    }

    #[test]
    fn shortest_paths_and_betweenness_are_right_and_touch_all_arrays() {
        // Both check what they find; 4096 vertices have 8 pages in each array.
        let (paths, between) = (shortest_paths(12, 2, 1), betweenness(12, 2, 1));
        assert_eq!(paths.pages(), 9 + 64 + 24);
        assert_eq!(between.pages(), 9 + 64 + 40);
        for mut program in [paths, between] {
            let first = 9 + 64;
            for array in 0..(program.pages() - first) / 8 {
                let pages = first + array * 8..first + array * 8 + 8;
                assert!(part(&mut program.clone(), pages) > 0.0, "array {array}");
            }
            assert!(part(&mut program, first..first + 40) > 0.4);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_accesses() {
        assert_eq!(breadth_first(10, 1, 5), breadth_first(10, 1, 5));
        assert_ne!(breadth_first(10, 1, 5), breadth_first(10, 1, 6));
    }
}
