//! Removes an experiment from its machines, without a manager and without the agents' help. It ends the remaining
//! agents and deletes the experiment's files.

use std::path::Path;

use futures_util::future::join_all;
use trial_protocol::ExperimentId;

use super::code_cache;
use super::records::Records;
use super::shell::{experiment_folder_script, folders};
use super::ssh::Ssh;
use crate::config::MachineSpec;
use crate::util::layout::ExperimentDir;
use crate::util::shell::quote;

/// A reason why the removal is incomplete.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The folder for the connections' sockets, or the record of machines, is not usable.
    #[error("cannot use {what}")]
    Local {
        /// The file or folder.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// These machines could not be cleaned.
    #[error("files of the experiment may remain on {}; solve the problem and run `clean` again", .0.join("; on "))]
    Incomplete(Vec<String>),
}

/// Removes an experiment from the machines in its file and from its earlier machines.
pub(super) async fn clean(
    named: &[MachineSpec],
    experiment: &ExperimentId,
    dir: &ExperimentDir,
) -> Result<(), Error> {
    let local = |what: &Path| {
        let what = what.display().to_string();
        move |source| Error::Local { what, source }
    };
    let path = dir.remote_machines();
    let records = Records::load(path.clone()).map_err(local(&path))?;
    let mut builder = tempfile::Builder::new();
    let tmp = Path::new("/tmp");
    let sockets = builder.prefix("tk-").tempdir_in(tmp).map_err(local(tmp))?;
    let machines = named.iter().chain(records.retired_machines(named));
    let cleaned = machines.enumerate().map(|(number, machine)| {
        let ssh = Ssh::new(machine, sockets.path(), number);
        async move {
            let cleaned = clean_machine(&ssh, machine, experiment).await;
            cleaned.err().map(|why| format!("{}: {why}", machine.name))
        }
    });
    let left: Vec<String> = join_all(cleaned).await.into_iter().flatten().collect();
    if left.is_empty() { Ok(()) } else { Err(Error::Incomplete(left)) }
}

async fn clean_machine(
    ssh: &Ssh,
    machine: &MachineSpec,
    experiment: &ExperimentId,
) -> Result<(), String> {
    // The connection ends when this value is dropped.
    let _control = ssh.connect().await?;
    let (cache, root) = folders(machine);
    let (place, prune) =
        (experiment_folder_script(experiment.as_str()), code_cache::prune_script());
    let experiment = quote(experiment.as_str());
    // The script recognises an agent by its lock, its program and its command line, so that it ends no other process
    // with a reused id. It also removes code that no experiment uses. With the last experiment, it removes the cache
    // of agents.
    let script = format!(
        r#"cache={cache}; root={root}; {place}
dir=$root/$at
programs=$(cd "$cache" 2>/dev/null && pwd -P) || programs=
agents() {{
  for lock in "$dir"/trials/*/spool/lock; do
    read -r pid < "$lock" 2>/dev/null || continue
    case $(readlink "/proc/$pid/exe" 2>/dev/null) in
      "$programs"/*) tr '\0' '\n' < "/proc/$pid/cmdline" | grep -qF "$dir/" && echo "$pid" ;;
    esac
  done
}}
for pid in $(agents); do kill -TERM "$pid"; done
left=20
while [ -n "$(agents)" ] && [ "$left" -gt 0 ]; do sleep 1; left=$((left - 1)); done
for pid in $(agents); do kill -KILL "$pid"; done
cd / && rm -rf "$dir" || exit 1
[ ! -d "$root"/{experiment} ] || rmdir "$root"/{experiment} 2>/dev/null || :
{prune}
for other in "$root"/*; do [ "$other" = "$cache" ] || [ ! -e "$other" ] || exit 0; done
rm -rf "$cache""#
    );
    ssh.run_slowly(&script).await.map(|_| ())
}
