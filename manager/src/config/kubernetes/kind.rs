//! The kinds of Kubernetes objects that an experiment file can request.

/// The name of the only role if the file gives none.
pub(super) const ROLE: &str = "worker";

/// The kind of object that runs an attempt of a trial job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// A Framework of Microsoft's `FrameworkController`.
    Framework,
    /// A Job of `batch/v1`.
    Job,
    /// A `JobSet`, with a Job for each of several roles.
    JobSet,
    /// A `TrainJob` of Kubeflow Trainer.
    TrainJob,
    /// A `TFJob` of the training operator.
    TfJob,
    /// A `PyTorchJob` of the training operator.
    PyTorchJob,
    /// An `XGBoostJob` of the training operator.
    XgBoostJob,
    /// A `PaddleJob` of the training operator.
    PaddleJob,
}

impl WorkloadKind {
    /// Returns the platform's name in the experiment file.
    pub fn platform(self) -> &'static str {
        match self {
            Self::Framework => "frameworkcontroller",
            Self::Job | Self::JobSet => "kubernetes",
            Self::TrainJob => "trainer",
            Self::TfJob | Self::PyTorchJob | Self::XgBoostJob | Self::PaddleJob => "kubeflow",
        }
    }

    /// Returns the kind of the object, with the name that its API uses.
    pub fn object(self) -> &'static str {
        match self {
            Self::Framework => "Framework",
            Self::Job => "Job",
            Self::JobSet => "JobSet",
            Self::TrainJob => "TrainJob",
            Self::TfJob => "TFJob",
            Self::PyTorchJob => "PyTorchJob",
            Self::XgBoostJob => "XGBoostJob",
            Self::PaddleJob => "PaddleJob",
        }
    }

    /// Returns the kind of object in the user's template.
    pub(super) fn template(self) -> &'static str {
        // The template is a Job, because only its pod is used.
        if self == Self::TrainJob { "Job" } else { self.object() }
    }

    /// Returns true if the section itself may hold the fields of the only role.
    pub(super) fn has_one_role(self) -> bool {
        matches!(self, Self::Job | Self::TrainJob)
    }

    /// Returns true if all trials share one pod template, which no trial may change.
    pub fn shares_pod_template(self) -> bool {
        self == Self::TrainJob
    }

    /// Returns the message for a cluster without problems.
    pub fn success_message(self) -> &'static str {
        match self {
            Self::Framework => {
                "it responds, has Frameworks, grants the rights; FrameworkController is running"
            }
            Self::Job => "it responds and grants the rights; its Job controller is running",
            Self::JobSet => {
                "it responds, has JobSets, grants the rights; the JobSet controller is running"
            }
            Self::TrainJob => {
                "it responds, has TrainJobs, grants the rights; Kubeflow Trainer is running"
            }
            Self::TfJob | Self::PyTorchJob | Self::XgBoostJob | Self::PaddleJob => {
                "it responds, has the kind, grants the rights; the training operator is running"
            }
        }
    }
}
