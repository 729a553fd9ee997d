//! PURE: the place where each trial ran, and the version of its code.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;
use trial_protocol::AttemptId;
use utoipa::ToSchema;

use super::Snapshot;
use super::attempts::hosts_by_attempt;
use crate::store::{AttemptCodes, AttemptHost, AttemptPart, ServicePart};
use crate::util::ids;

/// The place and the code of a trial's current attempt. Absence means unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct TrialOrigin {
    /// The machine or pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The training service. Absence also means that the experiment has only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_service: Option<ServicePart>,
    /// The SHA-256 of the code directory, over names and contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_sha256: Option<String>,
    /// The commit of the code directory's git work tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// The branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_branch: Option<String>,
    /// `true` if files differ from the commit or are new to git.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_dirty: Option<bool>,
    /// The SHA-256 of the difference from the commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_diff_sha256: Option<String>,
}

impl TrialOrigin {
    /// Adds the members to a trial in the form of a list.
    pub fn add_to(&self, trial: &mut Value) {
        if let (Ok(Value::Object(own)), Some(members)) =
            (serde_json::to_value(self), trial.as_object_mut())
        {
            members.extend(own);
        }
    }
}

/// Returns the origin of each trial for which something is known, by the trial's id.
pub fn origins(
    snapshot: &Snapshot,
    hosts: &[AttemptHost],
    parts: &[AttemptPart],
    codes: &AttemptCodes,
) -> BTreeMap<String, TrialOrigin> {
    let hosts = hosts_by_attempt(hosts);
    let parts: HashMap<(i64, &str), &ServicePart> =
        parts.iter().map(|it| ((it.trial, it.attempt.as_str()), &it.part)).collect();
    let code_of: HashMap<(i64, &str), i64> = codes
        .attempts
        .iter()
        .map(|(trial, attempt, code)| ((*trial, attempt.as_str()), *code))
        .collect();
    let known = snapshot.trials.iter().filter_map(|trial| {
        let attempt = ids::submitted_attempt(&AttemptId::new(&trial.attempt).ok()?);
        let place = (trial.key, attempt.as_str());
        let code = code_of.get(&place).and_then(|code| codes.versions.get(code));
        let git = code.and_then(|code| code.git.clone());
        let origin = TrialOrigin {
            host: hosts.get(&place).cloned(),
            training_service: parts.get(&place).copied().cloned(),
            code_sha256: code.map(|code| code.sha256.clone()),
            git_commit: git.as_ref().map(|git| git.commit.clone()),
            git_branch: git.as_ref().and_then(|git| git.branch.clone()),
            git_dirty: git.as_ref().and_then(|git| git.dirty),
            git_diff_sha256: git.and_then(|git| git.diff_sha256),
        };
        (origin != TrialOrigin::default()).then(|| (trial.id.clone(), origin))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code_archive::version::CodeVersion;

    #[test]
    fn each_trial_has_the_machine_and_the_code_of_its_current_attempt() {
        let mut again = super::super::trial::tests::summary(2, 1);
        again.attempt = "t-2_0_1".to_owned();
        let mut snapshot = Snapshot::default();
        snapshot.trials.extend([super::super::trial::tests::summary(1, 0).into(), again.into()]);
        let host = |trial, attempt: &str, host: &str| AttemptHost {
            trial,
            attempt: attempt.to_owned(),
            host: Some(host.to_owned()),
        };
        let version = |sha256: &str| CodeVersion {
            sha256: sha256.to_owned(),
            files: 1,
            bytes: 1,
            cut: false,
            changed: Vec::new(),
            git: None,
        };
        let codes = AttemptCodes {
            versions: HashMap::from([(7, version("old")), (8, version("new"))]),
            attempts: vec![(2, "t-1".to_owned(), 7), (2, "t-2".to_owned(), 8)],
        };
        let part = |attempt: &str, index| AttemptPart {
            trial: 2,
            attempt: attempt.to_owned(),
            part: ServicePart { index, platform: "remote".to_owned() },
        };
        let hosts = [host(2, "t-1", "a"), host(2, "t-2_0_1", "b")];
        let found = origins(&snapshot, &hosts, &[part("t-1", 0), part("t-2", 1)], &codes);
        let [only] = found.values().collect::<Vec<_>>()[..] else { panic!("{found:?}") };
        assert_eq!((only.host.as_deref(), only.code_sha256.as_deref()), (Some("b"), Some("new")));
        assert_eq!(only.training_service.as_ref().map(|part| part.index), Some(1));
    }
}
