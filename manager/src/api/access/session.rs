//! The sessions of browsers. Each has its own id and ends on the server. The store keeps the sessions, so they
//! survive a restart of the manager. It contains only digests, which give a reader no access.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::Error;
use crate::store::{self, SessionStore};
use crate::token::UserToken;
use crate::util::clock::Clock;
use crate::util::ids;

/// The lifetime of a session after the log-in.
pub(in crate::api) const SESSION_LIFETIME: Duration = Duration::from_hours(30 * 24);

/// The maximum number of sessions. A further one ends the session that would expire first.
const MAX_SESSIONS: usize = 1_000;

/// The sessions that have not ended; cheap to clone.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    /// The end of each session, in milliseconds since the Unix epoch, by its digest.
    end_times: Mutex<HashMap<String, i64>>,
    /// `None` if the sessions end with this process.
    store: Option<SessionStore>,
    clock: Arc<dyn Clock>,
}

impl Sessions {
    /// Loads the sessions of `store`, and keeps later ones there.
    pub async fn load(store: SessionStore, clock: Arc<dyn Clock>) -> Result<Self, store::Error> {
        let now_ms = clock.now_ms();
        let mut end_times: HashMap<_, _> = store.all().await?.into_iter().collect();
        end_times.retain(|_, end| *end > now_ms);
        Ok(Self(Arc::new(Inner { end_times: Mutex::new(end_times), store: Some(store), clock })))
    }

    /// Creates sessions that end with this process, for a store that is only read.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { end_times: Mutex::default(), store: None, clock }))
    }

    /// Begins a session, and returns its id for the browser.
    pub(in crate::api) async fn begin(&self, user: &UserToken) -> Result<String, Error> {
        let id = ids::new_secret_path();
        let unreadable = || Error::Unwritable("the token cannot be read".to_owned());
        let digest = user.session_digest(&id).ok_or_else(unreadable)?;
        let now_ms = self.0.clock.now_ms();
        let lifetime_ms = i64::try_from(SESSION_LIFETIME.as_millis()).unwrap_or(i64::MAX);
        let end_ms = now_ms.saturating_add(lifetime_ms);
        let displaced = self.insert(digest.clone(), end_ms, now_ms);
        if let Some(store) = &self.0.store {
            if let Some(first) = displaced {
                store.end(first).await?;
            }
            // Especially on a full disk, the user must be able to log in.
            if let Err(error) = store.begin(digest, end_ms, now_ms).await {
                tracing::warn!("cannot store a session, so it ends with this manager: {error}");
            }
        }
        Ok(id)
    }

    /// Adds a session, and returns the session that this one displaced.
    fn insert(&self, digest: String, end_ms: i64, now_ms: i64) -> Option<String> {
        let mut ends = self.lock();
        ends.retain(|_, end| *end > now_ms);
        let first = ends.iter().min_by_key(|(_, end)| **end).map(|(digest, _)| digest.clone());
        let displaced = first.filter(|_| ends.len() >= MAX_SESSIONS);
        displaced.as_ref().map(|digest| ends.remove(digest));
        ends.insert(digest, end_ms);
        displaced
    }

    /// Ends a session. An unknown id is not an error.
    pub(in crate::api) async fn end(&self, user: &UserToken, id: &str) -> Result<(), Error> {
        let Some(digest) = user.session_digest(id) else { return Ok(()) };
        let was_live = self.lock().remove(&digest).is_some();
        match &self.0.store {
            Some(store) if was_live => Ok(store.end(digest).await?),
            _ => Ok(()),
        }
    }

    /// Returns whether `id` is a session that began with the present token and has not ended.
    pub(in crate::api) fn is_live(&self, user: &UserToken, id: &str) -> bool {
        // The duration of the lookup reveals nothing: a client without the token cannot choose digests.
        let digest = user.session_digest(id);
        let end = digest.and_then(|digest| self.lock().get(&digest).copied());
        end.is_some_and(|end| end > self.0.clock.now_ms())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.0.end_times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::store::{Store, simulated_disk};

    #[derive(Default)]
    struct FakeClock(AtomicI64);

    impl Clock for FakeClock {
        fn now_ms(&self) -> i64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_session_survives_a_restart_and_ends_at_its_log_out_or_expiry() {
        let folder = tempfile::tempdir().unwrap();
        let user = UserToken::load_or_create(&folder.path().join("user.token")).unwrap();
        let clock = Arc::new(FakeClock::default());
        let path = folder.path().join("db");
        let store = Store::open(&path).unwrap();
        let sessions = Sessions::load(store.sessions().clone(), clock.clone()).await.unwrap();
        let (one, two) =
            (sessions.begin(&user).await.unwrap(), sessions.begin(&user).await.unwrap());
        assert_ne!(one, two, "each browser has its own session");
        sessions.end(&user, &one).await.unwrap();
        sessions.end(&user, "unknown").await.unwrap();
        let live = |sessions: &Sessions| [&one, &two].map(|id| sessions.is_live(&user, id));
        assert_eq!(live(&sessions), [false, true]);
        for (digest, _) in store.sessions().all().await.unwrap() {
            assert!(
                !digest.contains(&two) && !sessions.is_live(&user, &digest),
                "a digest gives no access"
            );
        }
        drop(sessions);
        store.close().await;

        let store = Store::open(&path).unwrap();
        let again = Sessions::load(store.sessions().clone(), clock.clone()).await.unwrap();
        assert_eq!(live(&again), [false, true]);
        let token = user.reveal().unwrap();
        std::fs::write(user.path(), "a-token-of-the-user's-own\n").unwrap();
        assert_eq!(live(&again), [false, false], "a new token ends all");
        std::fs::write(user.path(), token).unwrap();
        let end = i64::try_from(SESSION_LIFETIME.as_millis()).unwrap();
        clock.0.store(end - 1, Ordering::SeqCst);
        assert_eq!(live(&again), [false, true]);
        clock.0.store(end, Ordering::SeqCst);
        assert_eq!(live(&again), [false, false]);
        again.begin(&user).await.unwrap();
        assert_eq!(store.sessions().all().await.unwrap().len(), 1, "expired sessions are removed");
        assert!(again.begin(&user).await.is_ok());
        store.close().await;
    }

    #[tokio::test]
    async fn a_user_can_log_in_on_a_full_disk_and_sessions_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let user = UserToken::load_or_create(&folder.path().join("user.token")).unwrap();
        let database = folder.path().join("db");
        let store = simulated_disk::open(&database).unwrap();
        let sessions =
            Sessions::load(store.sessions().clone(), Arc::new(FakeClock::default())).await.unwrap();
        simulated_disk::fill(&database);
        let id = sessions.begin(&user).await.unwrap();
        assert!(sessions.is_live(&user, &id));
        store.close().await;

        let sessions = Sessions::in_memory(Arc::new(FakeClock::default()));
        for _ in 0..MAX_SESSIONS + 5 {
            sessions.begin(&user).await.unwrap();
        }
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
    }
}
