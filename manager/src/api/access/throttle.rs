//! The pause before a token is checked, which grows with the number of wrong tokens. The pause is bounded, and no
//! user is refused because of another user's guesses: the right token is always accepted. The pause is the same for
//! right and wrong tokens. Otherwise its absence would reveal the right one.
//!
//! The Unix socket in the experiment's folder has no pause: only the folder's owner reaches it, and can also read the
//! token.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::util::backoff::doubled_pause;

/// The address at the other end of a connection, as an extension of its requests. Absent on the Unix socket.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct Peer(pub(in crate::api) IpAddr);

impl Peer {
    /// Returns the part of the address that one owner holds. With IPv6, an owner has at least 2^64 addresses.
    pub(in crate::api) fn network(self) -> IpAddr {
        match self.0.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(network))
            }
            address @ IpAddr::V4(_) => address,
        }
    }
}

/// The growth of the pause with the number of failures.
#[derive(Debug, Clone, Copy)]
struct PauseGrowth {
    /// The number of failures without a pause, because people mistype.
    free_failures: u32,
    /// The number of further failures that doubles the pause.
    doubled_by: u32,
    longest: Duration,
}

/// The first pause, after the failures without one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The growth for one address.
const ADDRESS_GROWTH: PauseGrowth =
    PauseGrowth { free_failures: 5, doubled_by: 1, longest: Duration::from_secs(3) };
/// The growth for all addresses together.
const OVERALL_GROWTH: PauseGrowth =
    PauseGrowth { free_failures: 50, doubled_by: 10, longest: Duration::from_secs(1) };
/// The time after which one failure is forgotten.
const FAILURE_LIFETIME: Duration = Duration::from_secs(10);
/// The maximum number of counted failures, so that the pauses end within minutes of the last guess.
const MAX_FAILURES: u32 = 100;
/// The maximum number of addresses with a count of their own. Others count only in the total.
const MAX_ADDRESSES: usize = 10_000;

/// The recent failures; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct Throttle(Arc<Mutex<Failures>>);

#[derive(Debug, Default)]
struct Failures {
    overall: FailureCount,
    by_address: HashMap<IpAddr, FailureCount>,
    hasher: RandomState,
}

#[derive(Debug, Default, Clone, Copy)]
struct FailureCount {
    failures: u32,
    last: Option<Instant>,
    /// The hash of the last wrong token. A program that repeats a stale token is not guessing.
    shown: u64,
}

impl FailureCount {
    fn decayed(&self, now: Instant) -> u32 {
        let Some(last) = self.last else { return 0 };
        let forgotten = now.saturating_duration_since(last).as_secs() / FAILURE_LIFETIME.as_secs();
        self.failures.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }

    fn count_failure(&mut self, shown: u64, now: Instant) {
        if self.last.is_some() && self.shown == shown {
            return;
        }
        let failures = (self.decayed(now) + 1).min(MAX_FAILURES);
        *self = Self { failures, last: Some(now), shown };
    }
}

impl PauseGrowth {
    /// PURE: returns the pause after so many failures.
    fn pause(self, failures: u32) -> Duration {
        let Some(beyond) = failures.checked_sub(self.free_failures + 1) else {
            return Duration::ZERO;
        };
        doubled_pause(FIRST_PAUSE, beyond / self.doubled_by, self.longest)
    }
}

impl Throttle {
    /// Waits for the pause that the recent failures require. `None` for a request over the Unix socket.
    pub(in crate::api) async fn wait(&self, peer: Option<Peer>) {
        if let Some(peer) = peer {
            sleep(self.pause(peer, Instant::now())).await;
        }
    }

    fn pause(&self, peer: Peer, now: Instant) -> Duration {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = failures.by_address.get(&peer.network()).map_or(0, |tally| tally.decayed(now));
        ADDRESS_GROWTH.pause(own).max(OVERALL_GROWTH.pause(failures.overall.decayed(now)))
    }

    /// Counts a wrong token.
    pub(in crate::api) fn count_failure(&self, peer: Option<Peer>, shown: &str) {
        let Some(peer) = peer else { return };
        let (address, now) = (peer.network(), Instant::now());
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = failures.hasher.hash_one(shown);
        failures.overall.count_failure(shown, now);
        if failures.by_address.len() >= MAX_ADDRESSES && !failures.by_address.contains_key(&address)
        {
            failures.by_address.retain(|_, tally| tally.decayed(now) > 0);
            if failures.by_address.len() >= MAX_ADDRESSES {
                return;
            }
        }
        failures.by_address.entry(address).or_default().count_failure(shown, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Option<Peer> {
        address.parse().ok().map(Peer)
    }

    #[test]
    fn a_pause_grows_and_is_bounded() {
        let ms = |growth: PauseGrowth, failures| growth.pause(failures).as_millis();
        let table = [(0, 0), (5, 0), (6, 100), (7, 200), (10, 1600), (11, 3000), (100, 3000)];
        for (failures, expected) in table {
            assert_eq!(ms(ADDRESS_GROWTH, failures), expected, "{failures}");
        }
        let table = [(50, 0), (51, 100), (60, 100), (61, 200), (100, 1000), (u32::MAX, 1000)];
        for (failures, expected) in table {
            assert_eq!(ms(OVERALL_GROWTH, failures), expected, "{failures}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_waits_long_for_its_own_guesses_and_briefly_for_others() {
        let throttle = Throttle::default();
        let (guesser, user) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let pause = |peer: Option<Peer>| throttle.pause(peer.unwrap(), Instant::now());
        for guess in 0..20 {
            throttle.count_failure(guesser, &guess.to_string());
        }
        assert_eq!(pause(guesser), ADDRESS_GROWTH.longest);
        assert_eq!(pause(peer("::ffff:192.0.2.1")), ADDRESS_GROWTH.longest, "the same address");
        assert_eq!(pause(user), Duration::ZERO);
        for guess in 0..1000 {
            let many = format!("10.0.{}.{}", guess / 250, guess % 250);
            throttle.count_failure(peer(&many), &format!("guess {guess}"));
        }
        assert_eq!(pause(user), OVERALL_GROWTH.longest, "guesses of many addresses count together");
        let began = Instant::now();
        throttle.wait(None).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "the Unix socket");
        throttle.wait(user).await;
        assert!(began.elapsed() >= OVERALL_GROWTH.longest);
        tokio::time::advance(FAILURE_LIFETIME * MAX_FAILURES).await;
        assert_eq!((pause(user), pause(guesser)), (Duration::ZERO, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_stale_token_counts_as_one_guess() {
        let throttle = Throttle::default();
        let poller = peer("2001:db8::1");
        for _ in 0..1000 {
            throttle.count_failure(poller, "stale");
        }
        assert_eq!(throttle.pause(poller.unwrap(), Instant::now()), Duration::ZERO);
        for guess in 0..20 {
            throttle.count_failure(peer(&format!("2001:db8::{guess}")), &guess.to_string());
        }
        let pause = throttle.pause(poller.unwrap(), Instant::now());
        assert_eq!(pause, ADDRESS_GROWTH.longest, "addresses of one network count together");
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let throttle = Throttle::default();
        for n in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 10 {
            throttle.count_failure(Some(Peer(IpAddr::V4(n.into()))), &n.to_string());
        }
        assert_eq!(throttle.0.lock().unwrap().by_address.len(), MAX_ADDRESSES);
    }
}
