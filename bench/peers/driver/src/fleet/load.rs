//! The behaviour of clients: which locks they take, for how long, and with which pauses.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The exponent of the popularity of locks: the n-th lock is wanted in proportion to 1/n to the
/// power of this.
const POPULARITY: f64 = 0.8;
/// The exponent of the tail of hold times: the mean is three times the minimum, and the variance is
/// unbounded.
const TAIL: f64 = 1.5;

pub struct Load {
    random: SmallRng,
    /// The cumulative shares of the locks.
    shares: Vec<f64>,
    least_hold_us: f64,
    most_hold_us: f64,
    think_us: f64,
}

impl Load {
    pub fn new(seed: u64, locks: usize, least_hold_us: f64, most_hold_us: f64, think_us: f64) -> Self {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=locks)
            .map(|rank| {
                sum += (rank as f64).powf(-POPULARITY);
                sum
            })
            .collect();
        for share in &mut shares {
            *share /= sum;
        }
        Self { random: SmallRng::seed_from_u64(seed), shares, least_hold_us, most_hold_us, think_us }
    }

    pub fn lock(&mut self) -> usize {
        let point: f64 = self.random.random();
        self.shares.partition_point(|share| *share < point).min(self.shares.len() - 1)
    }

    /// A hold time with a Pareto distribution.
    pub fn hold_us(&mut self) -> u64 {
        let point: f64 = self.random.random();
        (self.least_hold_us * (1.0 - point).powf(-1.0 / TAIL)).min(self.most_hold_us) as u64
    }

    /// A pause with an exponential distribution.
    pub fn think_us(&mut self) -> u64 {
        let point: f64 = self.random.random();
        (-(1.0 - point).ln() * self.think_us) as u64
    }

    pub fn node(&mut self, nodes: u64) -> u64 {
        self.random.random_range(0..nodes)
    }

    pub fn happens(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }
}
