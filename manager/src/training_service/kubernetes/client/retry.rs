//! Repeats requests that failed for a temporary reason: an overloaded cluster, a fault of the cluster, or a cut
//! connection. It gives up soon, because a user at a terminal waits for these requests.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::Error;
use crate::util::backoff::Backoff;

/// The greatest number of tries, and the time after the first try in which another may begin.
const MAX_TRIES: u32 = 6;
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before the second try. It doubles before each further try, 8 s in all.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Repeats a request a few times until it succeeds or is refused, and returns the last answer.
pub async fn with_retries<T, F>(request: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let began = Instant::now();
    let mut backoff = Backoff::new(FIRST_RETRY_PAUSE, RETRY_TIMEOUT);
    for _ in 1..MAX_TRIES {
        let pause = backoff.next_pause();
        match request().await {
            Err(error) if error.is_temporary() && began.elapsed() + pause < RETRY_TIMEOUT => {
                debug!("{error}; trying again");
            }
            done => return done,
        }
        sleep(pause).await;
    }
    request().await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn trouble() -> Error {
        Error::Trouble { server: "https://k".to_owned(), code: 429, message: "busy".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn only_temporary_errors_are_retried_and_only_a_few_times() {
        let refused =
            || Error::Refused { server: "https://k".to_owned(), message: "no".to_owned() };
        #[rustfmt::skip]
        let table = [
            (0,  None,                Ok(()),           1),
            (3,  None,                Ok(()),           4),
            (99, None,                Err(trouble()),   MAX_TRIES),
            (0,  Some(refused()),     Err(refused()),   1),
            (2,  Some(refused()),     Err(refused()),   3),
        ];
        for (failing, then, expected, tries) in table {
            let count = Cell::new(0);
            let done = with_retries(|| {
                count.set(count.get() + 1);
                let answer = if count.get() <= failing {
                    Err(trouble())
                } else {
                    then.clone().map_or(Ok(()), Err)
                };
                std::future::ready(answer)
            });
            assert_eq!((done.await, count.get()), (expected, tries), "{failing}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unresponsive_cluster_is_not_tried_again_after_the_time_limit() {
        let count = Cell::new(0);
        let done = with_retries(|| async {
            count.set(count.get() + 1);
            sleep(RETRY_TIMEOUT).await;
            Err::<(), _>(trouble())
        });
        assert_eq!((done.await, count.get()), (Err(trouble()), 1));
    }
}
