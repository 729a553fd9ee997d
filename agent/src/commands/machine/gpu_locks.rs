//! The locks on GPUs, so that two experiments never give the same GPU to their trials at the same moment.
//!
//! A lock is an abstract Unix socket that the agent and its trial inherit. It needs no folder that all users can write,
//! and the kernel removes it with the trial's last process. Its name is `UUID/EXPERIMENT/ATTEMPT`, because trials of
//! one experiment may share a GPU.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::Value;

use super::Refusal;

/// The code of the refusal of a GPU that another experiment has.
const GPU_IN_USE: i32 = -32011;
/// The greatest length of an abstract socket's name.
const MAX_SOCKET_NAME_BYTES: usize = 107;

/// Returns the names of all held locks.
pub(super) fn list_held_locks() -> String {
    // A name may contain any bytes.
    String::from_utf8_lossy(&fs::read("/proc/net/unix").unwrap_or_default()).into_owned()
}

/// Returns the beginning of the names of a GPU's locks.
pub(super) fn lock_prefix(uuid: &str) -> String {
    [uuid, "/"].concat()
}

/// Locks the GPUs of an attempt. The caller keeps the locks until the agent has inherited them. All locks are taken
/// before the check, so that of two experiments at least one sees the other.
pub(super) fn lock_gpus(params: &Value) -> Result<Vec<UnixDatagram>, Refusal> {
    let key = |name: &str| params["key"][name].as_str().unwrap_or_default();
    let uuids = || params["gpus"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let own = |uuid: &str| [&lock_prefix(uuid), key("experiment"), "/"].concat();
    let mut locks = Vec::new();
    for uuid in uuids() {
        let mut name = [&own(uuid), key("attempt")].concat().into_bytes();
        name.truncate(MAX_SOCKET_NAME_BYTES);
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        // Without `CLOEXEC`, the agent inherits the socket.
        fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty())).map_err(io::Error::from)?;
        locks.push(socket);
    }
    let held = list_held_locks();
    for uuid in uuids().filter(|_| params["exclusive"] == true) {
        let (any, own) = (lock_prefix(uuid), own(uuid));
        if held.lines().any(|line| line.contains(&any) && !line.contains(&own)) {
            return Err(Refusal { code: GPU_IN_USE, message: uuid.to_owned() });
        }
    }
    Ok(locks)
}
