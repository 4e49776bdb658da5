//! The keeper of a client: one task that looks after all its holds, each when it is due.
//!
//! Holds that are to be renewed at the same moment and at the same server are renewed in one write. Each of them has its own answer there. A hold
//! whose answer does not come, or says anything but yes or no, goes on alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Moment;
use crate::home::Home;
use crate::link::Link;
use crate::timer::sleep_until;

/// What is sent in one write is executed before anything else is answered, so it is not more than takes the server a millisecond or so.
const MOST_IN_ONE_WRITE: usize = 256;

/// Something that has to be looked at when it is due.
pub(crate) trait Kept: Send + Sync {
    fn place(&self) -> &Place;

    /// It is due. It says itself when it is due next. What it returns is asked for, and answered.
    fn look(self: Arc<Self>, now: Moment) -> Option<Question>;

    /// What the server said to its question, which was sent at `sent`.
    fn answered(self: Arc<Self>, sent: Moment, link: &Arc<Link>, answer: Result<Value, RedisError>);

    /// Whether it ends with its connection, so that it is due when that is closed.
    fn ends_with_its_link(&self) -> bool;
}

/// What is to be asked, and how long the answer may take.
pub(crate) struct Question {
    pub(crate) link: Arc<Link>,
    pub(crate) command: Cmd,
    pub(crate) patience: Duration,
}

/// Where something kept stands in the order of what is due.
pub(crate) struct Place {
    number: u64,
    due: Mutex<Due>,
}

#[derive(Clone, Copy, PartialEq)]
enum Due {
    Never,
    At(Moment),
    /// Nobody wants it to be looked at any more.
    Gone,
}

impl Place {
    /// Only under the lock of the agenda, so that both say the same.
    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is due when.
#[derive(Default)]
struct Agenda {
    entries: Mutex<Entries>,
    has_earlier: Notify,
    last_number: AtomicU64,
    /// Connections whose end is waited for, by their numbers.
    watched: Mutex<Vec<u64>>,
}

#[derive(Default)]
struct Entries {
    by_moment: BTreeMap<(Moment, u64), Arc<dyn Kept>>,
    /// When the task wakes by itself; never if this is `None`.
    wakes_at: Option<Moment>,
}

impl Agenda {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, kept: Arc<dyn Kept>, at: Moment) {
        let mut entries = self.entries();
        let number = kept.place().number;
        let before = {
            let mut due = kept.place().due();
            match *due {
                Due::Gone => return,
                before => {
                    *due = Due::At(at);
                    before
                }
            }
        };
        if let Due::At(before) = before {
            entries.by_moment.remove(&(before, number));
        }
        entries.by_moment.insert((at, number), kept);
        if entries.wakes_at.is_none_or(|wakes_at| at < wakes_at) {
            entries.wakes_at = Some(at);
            self.has_earlier.notify_one();
        }
    }

    /// What is removed is dropped without the lock: with it may go a client, and this.
    fn remove(&self, place: &Place) -> Option<Arc<dyn Kept>> {
        let mut entries = self.entries();
        match std::mem::replace(&mut *place.due(), Due::Gone) {
            Due::At(at) => entries.by_moment.remove(&(at, place.number)),
            Due::Never | Due::Gone => None,
        }
    }

    fn take_due(&self, now: Moment) -> Vec<Arc<dyn Kept>> {
        let mut entries = self.entries();
        let mut taken = Vec::new();
        while let Some(first) = entries.by_moment.first_entry().filter(|first| first.key().0 <= now) {
            let kept = first.remove();
            *kept.place().due() = Due::Never;
            taken.push(kept);
        }
        taken
    }

    /// Sleeps until something is due, or may be.
    async fn sleep(&self) {
        let first = {
            let mut entries = self.entries();
            entries.wakes_at = entries.by_moment.first_key_value().map(|((first, _), _)| *first);
            entries.wakes_at
        };
        tokio::select! {
            () = sleep_until(first.unwrap_or(Moment::NEVER)) => {}
            () = self.has_earlier.notified() => {}
        }
    }

    /// A connection is closed: whatever ends with one is due.
    fn link_closed(&self, number: u64) {
        self.watched().retain(|other| *other != number);
        let bound: Vec<_> =
            self.entries().by_moment.values().filter(|kept| kept.ends_with_its_link()).cloned().collect();
        let now = Moment::now();
        for kept in bound {
            self.set(kept, now);
        }
    }

    fn watched(&self) -> MutexGuard<'_, Vec<u64>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task.
async fn keep(agenda: Arc<Agenda>) {
    loop {
        let now = Moment::now();
        let due = agenda.take_due(now);
        if due.is_empty() {
            agenda.sleep().await;
            continue;
        }
        let mut together: Vec<(Arc<Link>, Batch)> = Vec::new();
        for kept in due {
            let Some(question) = kept.clone().look(now) else { continue };
            let place = together
                .iter_mut()
                .find(|(link, batch)| Arc::ptr_eq(link, &question.link) && batch.len() < MOST_IN_ONE_WRITE);
            match place {
                Some((_, batch)) => batch.push((kept, question)),
                None => together.push((question.link.clone(), vec![(kept, question)])),
            }
        }
        // A server that is silent holds up only what is asked of it.
        for (link, batch) in together {
            drop(tokio::spawn(ask_together(link, batch)));
        }
        tokio::task::yield_now().await;
    }
}

type Batch = Vec<(Arc<dyn Kept>, Question)>;

async fn ask_together(link: Arc<Link>, batch: Batch) {
    let patience = batch.iter().map(|(_, question)| question.patience).min().unwrap_or_default();
    let mut commands = redis::Pipeline::with_capacity(batch.len());
    let mut asking = Vec::with_capacity(batch.len());
    for (kept, question) in batch {
        commands.add_command(question.command);
        asking.push(kept);
    }
    // Before they are sent, so that a lease does not seem to end later than it does.
    let sent = Moment::now();
    match link.ask_all(&commands, asking.len(), patience).await {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for kept in asking {
                let missing = || RedisError::from((redis::ErrorKind::Parse, "an answer is missing"));
                let answer = answers.next().ok_or_else(missing).and_then(Value::extract_error);
                kept.answered(sent, &link, answer);
            }
        }
        Err(error) => asking.into_iter().for_each(|kept| kept.answered(sent, &link, Err(error.clone()))),
    }
}

/// The keeper of a client. It ends with it.
pub(crate) struct Keeper {
    agenda: Arc<Agenda>,
    home: Arc<Home>,
    _task: AbortOnDropHandle<()>,
}

impl Keeper {
    pub(crate) fn new(home: Arc<Home>) -> Self {
        let agenda = Arc::<Agenda>::default();
        let task = AbortOnDropHandle::new(home.start(keep(agenda.clone())));
        Self { agenda, home, _task: task }
    }

    /// A place for something new. It is due when that is said for the first time.
    pub(crate) fn place(&self) -> Place {
        let number = self.agenda.last_number.fetch_add(1, Ordering::Relaxed);
        Place { number, due: Mutex::new(Due::Never) }
    }

    /// Looks at something at this moment, and not before.
    pub(crate) fn look_at(&self, kept: Arc<dyn Kept>, at: Moment) {
        self.agenda.set(kept, at);
    }

    /// Looks at something no more.
    pub(crate) fn forget(&self, place: &Place) {
        drop(self.agenda.remove(place));
    }

    /// Looks at what [ends with its link](Kept::ends_with_its_link) when this one is closed.
    pub(crate) fn watch(&self, link: &Link) {
        let number = link.number();
        let mut watched = self.agenda.watched();
        if watched.contains(&number) {
            return;
        }
        watched.push(number);
        let (agenda, closed) = (self.agenda.clone(), link.closing().clone());
        drop(self.home.start(async move {
            closed.cancelled().await;
            agenda.link_closed(number);
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes when it was looked at.
    struct Note {
        place: Place,
        looks: Mutex<Vec<Moment>>,
        ends_with_its_link: bool,
    }

    impl Kept for Note {
        fn place(&self) -> &Place {
            &self.place
        }

        fn look(self: Arc<Self>, now: Moment) -> Option<Question> {
            self.looks.lock().expect("no panic").push(now);
            None
        }

        fn answered(self: Arc<Self>, _: Moment, _: &Arc<Link>, _: Result<Value, RedisError>) {}

        fn ends_with_its_link(&self) -> bool {
            self.ends_with_its_link
        }
    }

    fn note(keeper: &Keeper, ends_with_its_link: bool) -> Arc<Note> {
        Arc::new(Note { place: keeper.place(), looks: Mutex::default(), ends_with_its_link })
    }

    fn looks(note: &Note) -> usize {
        note.looks.lock().expect("no panic").len()
    }

    #[tokio::test]
    async fn each_is_looked_at_when_it_was_last_said_and_not_when_it_is_forgotten() {
        let keeper = Keeper::new(Arc::new(Home::here()));
        let [moved, forgotten, last] = [false; 3].map(|bound| note(&keeper, bound));
        let after = |ms| Moment::now().after(Duration::from_millis(ms));
        keeper.look_at(moved.clone(), after(600_000));
        keeper.look_at(forgotten.clone(), after(10));
        keeper.forget(forgotten.place());
        keeper.look_at(forgotten.clone(), after(10));
        let due = after(20);
        keeper.look_at(moved.clone(), due);
        keeper.look_at(last.clone(), after(40));
        while looks(&last) == 0 {
            crate::timer::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!((looks(&moved), looks(&forgotten)), (1, 0));
        assert!(moved.looks.lock().expect("no panic")[0] >= due);
    }

    #[tokio::test]
    async fn what_ends_with_its_link_is_due_when_that_closes() {
        let keeper = Keeper::new(Arc::new(Home::here()));
        let (bound, other) = (note(&keeper, true), note(&keeper, false));
        for note in [&bound, &other] {
            keeper.look_at(note.clone(), Moment::now().after(Duration::from_mins(10)));
        }
        keeper.agenda.link_closed(1);
        while looks(&bound) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(looks(&other), 0);
    }

    #[tokio::test]
    async fn what_is_due_before_the_first_that_is_slept_for_wakes_the_keeper() {
        let keeper = Keeper::new(Arc::new(Home::here()));
        let [later, sooner] = [false; 2].map(|bound| note(&keeper, bound));
        keeper.look_at(later.clone(), Moment::now().after(Duration::from_mins(10)));
        // Until the keeper sleeps.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        keeper.look_at(sooner.clone(), Moment::now().after(Duration::from_millis(20)));
        let looked = async {
            while looks(&sooner) == 0 {
                crate::timer::sleep(Duration::from_millis(5)).await;
            }
        };
        crate::timer::within(Duration::from_secs(20), looked).await.expect("it is looked at in time");
        assert_eq!(looks(&later), 0);
    }
}
