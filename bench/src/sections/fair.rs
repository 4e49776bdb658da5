//! The costs of a fair lock's queue: taking, leaving and serving a place in short and long queues,
//! and the memory of a place without a connection.
//!
//! The queue keeps its length: for each owner that leaves from the middle or gets the lock, a new
//! one joins at the end. All waiters poll, so no connection's cost hides the queue's.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result};
use rlock_bench::connection::Connection;
use rlock_bench::resp;
use rlock_bench::server::Server;

use super::fill;
use crate::names;
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

const LENGTHS: [usize; 3] = [10, 1000, 100_000];
const KEY: &[u8] = b"jobs";
/// No place ends during a round, however slow the machine.
const LIFE_MS: &[u8] = b"86400000";
const BATCH: usize = 100;
const BATCHES: usize = 200;
const PLACES: usize = 100_000;
const BLOCKED: usize = 5000;

/// A queue of a known length behind one holder, and the order of its owners.
struct Queue {
    connection: Connection,
    /// The numbers of the owners. They are numbered by arrival, so sorted numbers have the queue's
    /// order.
    owners: VecDeque<usize>,
    next_owner: usize,
    holder: usize,
}

impl Queue {
    fn fill(server: &mut Server, length: usize) -> Result<Self> {
        let mut connection = server.connect()?;
        let holder = owner(0);
        connection.call(&[b"RFAIRLOCK.ACQUIRE", KEY, &holder, b"PX", LIFE_MS])?.integer()?;
        let mut queue = Self { connection, owners: VecDeque::new(), next_owner: 1, holder: 0 };
        let mut commands = Vec::new();
        while queue.owners.len() < length {
            let batch = BATCH.min(length - queue.owners.len());
            commands.clear();
            for _ in 0..batch {
                queue.push_queue(&mut commands);
            }
            queue.connection.send(&commands)?;
            for _ in 0..batch {
                queue.connection.reply()?.expect(b"$-1\r\n")?;
            }
        }
        Ok(queue)
    }

    /// Adds a new owner at the end of the queue.
    fn push_queue(&mut self, commands: &mut Vec<u8>) {
        let name = owner(self.next_owner);
        resp::push_command(commands, &[b"RFAIRLOCK.ACQUIRE", KEY, &name, b"PX", LIFE_MS, b"QUEUE", LIFE_MS]);
        self.owners.push_back(self.next_owner);
        self.next_owner += 1;
    }

    /// One owner leaves from the middle and a new one joins at the end, `BATCH` times.
    fn leave_and_queue(&mut self) -> Result<()> {
        let mut commands = Vec::new();
        for _ in 0..BATCH {
            let leaving = self.owners.swap_remove_back(self.owners.len() / 2).context("an empty queue")?;
            resp::push_command(&mut commands, &[b"RFAIRLOCK.CANCEL", KEY, &owner(leaving)]);
            self.push_queue(&mut commands);
        }
        self.connection.send(&commands)?;
        for _ in 0..BATCH {
            self.connection.reply()?.expect(b":1\r\n")?;
            self.connection.reply()?.expect(b"$-1\r\n")?;
        }
        Ok(())
    }

    /// The holder releases the lock, the head of the queue acquires it, and a new owner joins at
    /// the end, `BATCH` times. `owners` must have the queue's order.
    fn hand_over(&mut self) -> Result<()> {
        let mut commands = Vec::new();
        for _ in 0..BATCH {
            let head = self.owners.pop_front().context("an empty queue")?;
            resp::push_command(&mut commands, &[b"RFAIRLOCK.RELEASE", KEY, &owner(self.holder)]);
            resp::push_command(&mut commands, &[b"RFAIRLOCK.ACQUIRE", KEY, &owner(head), b"PX", LIFE_MS]);
            self.push_queue(&mut commands);
            self.holder = head;
        }
        self.connection.send(&commands)?;
        for _ in 0..BATCH {
            self.connection.reply()?.expect(b":0\r\n")?;
            self.connection.reply()?.integer()?;
            self.connection.reply()?.expect(b"$-1\r\n")?;
        }
        Ok(())
    }
}

/// The name of an owner: 40 bytes, as in the aim for memory.
fn owner(number: usize) -> Vec<u8> {
    format!("{}-own", names::owner_id(number)).into_bytes()
}

/// Measures each cost at each length, in turns.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let mut leaving = LENGTHS.map(|_| Series::default());
    let mut serving = LENGTHS.map(|_| Series::default());
    for _ in 0..rounds {
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let mut queue = Queue::fill(server, length)?;
            queue.leave_and_queue()?;
            let before_ns = server.main_thread_cpu_ns()?;
            for _ in 0..BATCHES {
                queue.leave_and_queue()?;
            }
            let cpu_ns = server.main_thread_cpu_ns()? - before_ns;
            leaving[index].push(cpu_ns as f64 / 1e3 / (BATCHES * BATCH) as f64);

            queue.owners.make_contiguous().sort_unstable();
            queue.hand_over()?;
            let before_ns = server.main_thread_cpu_ns()?;
            for _ in 0..BATCHES {
                queue.hand_over()?;
            }
            let cpu_ns = server.main_thread_cpu_ns()? - before_ns;
            serving[index].push(cpu_ns as f64 / 1e3 / (BATCHES * BATCH) as f64);
            drop(queue);
            fill::flush(server)?;
        }
    }
    let mut lines = Vec::new();
    for (measure, costs) in
        [("leave from the middle + queue, server CPU", &leaving), ("hand-over to a poller, server CPU", &serving)]
    {
        for index in 1..LENGTHS.len() {
            let figure = |index: usize| Figure::new(format!("{} places", LENGTHS[index]), Unit::Us, &costs[index]);
            lines.push(Line::ratio(measure, figure(index), figure(0)).aim(Aim::AtMost(2.0)));
        }
    }
    lines.push(measure_memory(server, rounds)?);
    Ok(lines)
}

/// Measures the memory of a place without a connection, and of a blocked client for comparison.
fn measure_memory(server: &mut Server, rounds: usize) -> Result<Line> {
    let (mut place, mut client) = (Series::default(), Series::default());
    for _ in 0..rounds {
        let before = fill::settled_memory_bytes(server)?;
        drop(Queue::fill(server, PLACES)?);
        let after = fill::settled_memory_bytes(server)?;
        place.push((after as f64 - before as f64) / PLACES as f64);
        fill::flush(server)?;
    }
    let before = fill::settled_memory_bytes(server)?;
    let mut holder = server.connect()?;
    holder.call(&[b"RFAIRLOCK.ACQUIRE", KEY, &owner(0), b"PX", LIFE_MS])?.integer()?;
    let mut blocked = Vec::new();
    for index in 0..BLOCKED {
        let mut connection = server.connect()?;
        let owner = owner(index + 1);
        connection.send(&resp::command(&[b"RFAIRLOCK.ACQUIRE", KEY, &owner, b"PX", LIFE_MS, b"BLOCK", b"0"]))?;
        blocked.push(connection);
    }
    server.wait_for_info("rlock_waiting", BLOCKED as u64, Duration::from_secs(10))?;
    let after = server.info_number("used_memory")?;
    client.push((after as f64 - before as f64) / BLOCKED as f64);
    drop(blocked);
    Ok(Line::value("memory of a place without a connection, 40-byte owner", Statistic::Median, Unit::Bytes, place)
        .aim(Aim::AtMost(200.0))
        .figure(Figure::new("a blocked client with its place", Unit::Bytes, &client)))
}
