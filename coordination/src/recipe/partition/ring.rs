//! A weighted consistent-hash ring that places keys as Tooz does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use md5::{Digest, Md5};

/// A consistent-hash ring: it places keys on nodes so that few keys move when a node is added or removed.
///
/// It places keys exactly as Tooz's `HashRing` does, so that services written with either agree. A node has
/// `partitions × weight` points on the ring. A key belongs to the node at the next point, and its replicas to
/// the next different nodes after that. The placement depends on the nodes, not on the order in which they
/// were added.
///
/// It uses MD5, like Tooz, and so does not resist somebody who chooses keys that all fall on one node.
///
/// # Examples
///
/// ```
/// use coordination::HashRing;
///
/// let mut ring = HashRing::new(["foo", "bar", "baz"]);
/// assert_eq!(ring.node("fake"), Some("foo"));
/// assert_eq!(ring.nodes("fake", 2, &[]), ["foo", "bar"]);
///
/// ring.remove("foo")?;
/// assert_eq!(ring.node("fake"), Some("bar"));
/// # Ok::<_, coordination::UnknownNode>(())
/// ```
#[derive(Clone)]
pub struct HashRing {
    partitions: u32,
    weights: BTreeMap<Arc<str>, u32>,
    /// Sorted. If two nodes have the same point, the one with the smaller name has it, in whatever order they were
    /// added.
    points: Vec<(u128, Arc<str>)>,
}

impl HashRing {
    /// The number of points of a node of weight 1, unless given.
    pub const PARTITIONS: u32 = 32;

    /// A ring of these nodes, each of weight 1.
    pub fn new<N: Into<Arc<str>>>(nodes: impl IntoIterator<Item = N>) -> Self {
        let mut ring = Self::default();
        ring.extend(nodes.into_iter().map(|node| (node, 1)));
        ring
    }

    /// An empty ring on which a node has `partitions` points for each unit of its weight.
    pub fn with_partitions(partitions: u32) -> Self {
        Self { partitions, weights: BTreeMap::new(), points: Vec::new() }
    }

    /// Adds the node, or changes its weight. A node of weight 0 gets no keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::HashRing;
    ///
    /// let mut ring = HashRing::new(["small"]);
    /// ring.add("large", 3);
    /// let of_large = (0..1_000).filter(|n| ring.node(format!("vol-{n}")) == Some("large")).count();
    /// assert!(of_large > 600, "three quarters or so: {of_large}");
    ///
    /// // For maintenance: it stays on the ring, and gets no keys.
    /// ring.add("large", 0);
    /// assert_eq!(ring.node("vol-7"), Some("small"));
    /// ```
    pub fn add(&mut self, node: impl Into<Arc<str>>, weight: u32) {
        self.place(node.into(), weight);
        self.points.sort_unstable();
    }

    fn place(&mut self, node: Arc<str>, weight: u32) {
        if self.weights.insert(Arc::clone(&node), weight).is_some() {
            self.points.retain(|(_, other)| *other != node);
        }
        // Tooz updates one digest again and again: the second point is the digest of the name twice, the third of it
        // three times.
        let mut hash = Md5::new_with_prefix(&*node);
        for _ in 0..u64::from(self.partitions) * u64::from(weight) {
            hash.update(&*node);
            self.points.push((number(hash.clone()), Arc::clone(&node)));
        }
    }

    /// Removes the node.
    ///
    /// # Errors
    ///
    /// [`UnknownNode`]: it is not on the ring.
    pub fn remove(&mut self, node: &str) -> Result<(), UnknownNode> {
        self.weights.remove(node).ok_or_else(|| UnknownNode(node.to_owned()))?;
        self.points.retain(|(_, other)| **other != *node);
        Ok(())
    }

    /// The node that the key belongs to; `None` if there is no node of a weight above 0.
    pub fn node(&self, key: impl AsRef<[u8]>) -> Option<&str> {
        self.from(key.as_ref()).next().map(|node| &**node)
    }

    /// The first `replicas` different nodes from the key on, without those in `ignore`; fewer, if there are
    /// not as many. The first is [`node`](Self::node), unless that is ignored.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::HashRing;
    ///
    /// let ring = HashRing::new(["foo", "bar", "baz"]);
    /// assert_eq!(ring.nodes("fake", 2, &[]), ["foo", "bar"]);
    /// // As if the first were down.
    /// assert_eq!(ring.nodes("fake", 2, &["foo"]), ["bar", "baz"]);
    /// ```
    pub fn nodes(&self, key: impl AsRef<[u8]>, replicas: usize, ignore: &[&str]) -> Vec<&str> {
        let candidates = self
            .weights
            .iter()
            .filter(|(node, weight)| **weight > 0 && !ignore.contains(&&***node));
        let wanted = replicas.min(candidates.count());
        let mut nodes = Vec::with_capacity(wanted);
        for node in self.from(key.as_ref()) {
            if nodes.len() == wanted {
                break;
            }
            if !ignore.contains(&&**node) && !nodes.contains(&&**node) {
                nodes.push(&**node);
            }
        }
        nodes
    }

    /// Whether the node is on the ring.
    pub fn contains(&self, node: &str) -> bool {
        self.weights.contains_key(node)
    }

    /// The node's weight; `None` if it is not on the ring.
    pub fn weight(&self, node: &str) -> Option<u32> {
        self.weights.get(node).copied()
    }

    /// The number of points of a node of weight 1.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The nodes and their weights, by name.
    pub fn weights(&self) -> impl Iterator<Item = (&str, u32)> {
        self.weights.iter().map(|(node, weight)| (&**node, *weight))
    }

    /// The number of points on the ring: `partitions × weight` for each node. It is what Python's `len` says of Tooz's ring.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// The number of nodes on the ring, those of weight 0 included.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there is no node on the ring.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The nodes of all points, from the key's position on and once around the ring.
    fn from(&self, key: &[u8]) -> impl Iterator<Item = &Arc<str>> {
        let hash = number(Md5::new_with_prefix(key));
        let first = self.points.partition_point(|(point, _)| *point <= hash);
        let around = self.points.iter().cycle().skip(first).take(self.points.len());
        around.map(|(_, node)| node)
    }
}

impl<N: Into<Arc<str>>> Extend<(N, u32)> for HashRing {
    /// [Adds](Self::add) nodes of these weights.
    fn extend<I: IntoIterator<Item = (N, u32)>>(&mut self, nodes: I) {
        nodes.into_iter().for_each(|(node, weight)| self.place(node.into(), weight));
        self.points.sort_unstable();
    }
}

impl Default for HashRing {
    fn default() -> Self {
        Self::with_partitions(Self::PARTITIONS)
    }
}

impl fmt::Debug for HashRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashRing")
            .field("partitions", &self.partitions)
            .field("weights", &self.weights)
            .finish_non_exhaustive()
    }
}

fn number(hash: Md5) -> u128 {
    u128::from_be_bytes(hash.finalize().into())
}

/// The node of this name is not on the ring.
///
/// # Examples
///
/// ```
/// use coordination::{HashRing, UnknownNode};
///
/// let mut ring = HashRing::new(["foo", "bar"]);
/// assert_eq!(ring.remove("baz"), Err(UnknownNode("baz".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownNode(pub String);

impl fmt::Display for UnknownNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no node {:?} on the ring", self.0)
    }
}

impl std::error::Error for UnknownNode {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: [&str; 5] = ["fake", "fake-again", "vol-1", "vol-2", ""];

    fn placed(ring: &HashRing) -> Vec<&str> {
        KEYS.iter().filter_map(|key| ring.node(key)).collect()
    }

    fn sorted(mut nodes: Vec<&str>) -> Vec<&str> {
        nodes.sort_unstable();
        nodes
    }

    /// Tooz: corresponds to the test `test_hash2int_returns_int` of the Python library Tooz, and checks where Tooz places one node
    /// with one partition.
    #[test]
    fn a_point_is_tooz_point() {
        let mut ring = HashRing::with_partitions(1);
        ring.add("foo", 1);
        assert_eq!(ring.points[0].0, 0xfdba_9897_0961_edb2_9f88_241b_9d99_d890);
    }

    /// Tooz: corresponds to these tests of the Python library Tooz: `test_create_ring`, `test_distribution_one_replica`.
    #[test]
    fn keys_are_placed_as_by_tooz() {
        let mut ring = HashRing::new(["foo", "bar"]);
        assert_eq!(ring.points(), 2 * 32);
        assert_eq!(placed(&ring), ["foo", "bar", "foo", "bar", "bar"]);
        ring.add("baz", 1);
        assert_eq!(ring.points(), 3 * 32);
        assert_eq!(placed(&ring), ["foo", "bar", "baz", "baz", "bar"]);
    }

    /// Tooz: corresponds to these tests of the Python library Tooz: `test_add_node_weight`, `test_add_nodes_weight`.
    #[test]
    fn weights_count_as_with_tooz() {
        let mut ring = HashRing::new(["foo", "bar"]);
        ring.add("baz", 10);
        assert_eq!(ring.points(), 12 * 32);
        assert_eq!(placed(&ring), ["baz"; 5]);
        assert_eq!(ring.weights().collect::<Vec<_>>(), [("bar", 1), ("baz", 10), ("foo", 1)]);
        ring.add("baz", 1);
        assert_eq!(ring.points(), 3 * 32);
        ring.add("baz", 0);
        assert_eq!((ring.points(), ring.contains("baz")), (2 * 32, true));
        assert_eq!((ring.len(), ring.is_empty()), (3, false), "nodes, not points");
        assert_eq!(ring.nodes("fake", 3, &[]), ["foo", "bar"]);
    }

    /// Tooz: corresponds to the test `test_distribution_more_replica` of the Python library Tooz.
    #[test]
    fn replicas_are_those_of_tooz() {
        let ring = HashRing::new(["foo", "bar", "baz"]);
        let two: Vec<_> = KEYS.iter().map(|key| sorted(ring.nodes(key, 2, &[]))).collect();
        let expected =
            [["bar", "foo"], ["bar", "baz"], ["baz", "foo"], ["bar", "baz"], ["bar", "foo"]];
        assert_eq!(two, expected);
        for key in KEYS {
            assert_eq!(sorted(ring.nodes(key, 3, &[])), ["bar", "baz", "foo"]);
            assert_eq!(ring.nodes(key, 4, &[]).len(), 3);
            assert!(ring.nodes(key, 0, &[]).is_empty());
        }
    }

    /// Tooz: corresponds to these tests of the Python library Tooz: `test_ignore_nodes`, `test_ignore_non_existent_node`.
    #[test]
    fn ignored_nodes_get_nothing() {
        let ring = HashRing::new(["foo", "bar", "baz"]);
        let without = HashRing::new(["foo", "baz"]);
        for key in KEYS {
            assert_eq!(ring.nodes(key, 1, &["bar", "nobody"]), without.nodes(key, 1, &[]));
            assert_eq!(ring.nodes(key, 1, &["nobody"]).first().copied(), ring.node(key));
            assert!(ring.nodes(key, 1, &["foo", "bar", "baz"]).is_empty());
        }
    }

    /// Tooz: corresponds to these tests of the Python library Tooz: `test_add_node`, `test_add_node_unicode`, `test_remove_node`,
    /// `test_remove_node_unknown`, `test_add_then_removenode`.
    #[test]
    fn nodes_come_and_go() {
        let mut ring = HashRing::default();
        assert_eq!((ring.points(), ring.is_empty(), ring.node("fake")), (0, true, None));
        assert_eq!(ring.len(), 0);
        assert_eq!(ring.remove("foo"), Err(UnknownNode("foo".into())));
        ring.add("\u{0634}\u{0628}\u{06a9}\u{0647}", 1);
        ring.add("foo", 1);
        assert_eq!(ring.points(), 2 * 32);
        ring.remove("foo").expect("it is there");
        assert_eq!(ring.remove("foo"), Err(UnknownNode("foo".into())));
        assert_eq!((ring.points(), ring.contains("foo")), (32, false));
        assert_eq!(ring.node("fake"), Some("\u{0634}\u{0628}\u{06a9}\u{0647}"));
    }

    /// Every node gets about its share.
    #[test]
    fn keys_are_spread() {
        let ring = HashRing::new((0..10).map(|node| format!("node-{node}")));
        let mut shares = BTreeMap::new();
        for key in 0..10_000 {
            *shares.entry(ring.node(format!("key-{key}"))).or_insert(0) += 1;
        }
        assert_eq!(shares.len(), 10);
        assert!(shares.values().all(|share| (400..2_500).contains(share)), "{shares:?}");
    }

    fn nodes() -> impl Strategy<Value = BTreeMap<String, u32>> {
        prop::collection::btree_map("[a-z0-9é-]{1,6}", 1..4_u32, 1..8)
    }

    fn ring_of(nodes: &BTreeMap<String, u32>) -> HashRing {
        let mut ring = HashRing::default();
        nodes.iter().for_each(|(node, weight)| ring.add(node.as_str(), *weight));
        ring
    }

    proptest! {
        /// Tooz: corresponds to these tests of the Python library Tooz: `test_rebalance_stability_join`,
        /// `test_rebalance_stability_leave`.
        #[test]
        fn only_keys_of_the_one_who_comes_or_goes_move(
            nodes in nodes(), weight in 1..4_u32, keys in prop::collection::vec(any::<Vec<u8>>(), 50),
        ) {
            let before = ring_of(&nodes);
            let mut with = before.clone();
            with.add("Another", weight);
            for key in &keys {
                let now = with.node(key);
                prop_assert!(now == Some("Another") || now == before.node(key));
            }
            with.remove("Another").expect("it is there");
            for key in &keys {
                prop_assert_eq!(with.node(key), before.node(key));
            }
        }

        #[test]
        fn the_order_of_coming_does_not_matter(nodes in nodes(), key in any::<Vec<u8>>()) {
            let mut ring = HashRing::default();
            for (node, weight) in nodes.iter().rev() {
                ring.add(node.as_str(), weight + 1);
            }
            for (node, weight) in &nodes {
                ring.add(node.as_str(), *weight);
            }
            let other = ring_of(&nodes);
            prop_assert_eq!(ring.nodes(&key, 8, &[]), other.nodes(&key, 8, &[]));
        }
    }
}
