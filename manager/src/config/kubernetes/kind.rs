//! The kinds of Kubernetes objects that an experiment file can ask for.

/// The name of the only role where the file gives none.
pub(super) const ROLE: &str = "worker";

/// The kind of object that runs an attempt of a trial job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// A Framework of Microsoft's `FrameworkController`.
    Framework,
    /// A Job of `batch/v1`.
    Job,
    /// A `JobSet`: a Job for each of several roles.
    JobSet,
    /// A `TFJob` of the training operator's.
    TfJob,
    /// A `PyTorchJob` of the training operator's.
    PyTorchJob,
    /// An `XGBoostJob` of the training operator's.
    XgBoostJob,
    /// A `PaddleJob` of the training operator's.
    PaddleJob,
}

impl WorkloadKind {
    /// The platform's name in the experiment file.
    pub fn platform(self) -> &'static str {
        match self {
            Self::Framework => "frameworkcontroller",
            Self::Job | Self::JobSet => "kubernetes",
            Self::TfJob | Self::PyTorchJob | Self::XgBoostJob | Self::PaddleJob => "kubeflow",
        }
    }

    /// The kind of the object, as its API names it.
    pub fn object(self) -> &'static str {
        match self {
            Self::Framework => "Framework",
            Self::Job => "Job",
            Self::JobSet => "JobSet",
            Self::TfJob => "TFJob",
            Self::PyTorchJob => "PyTorchJob",
            Self::XgBoostJob => "XGBoostJob",
            Self::PaddleJob => "PaddleJob",
        }
    }

    /// Returns a sentence about a cluster where nothing stands in the way.
    pub fn good_news(self) -> &'static str {
        match self {
            Self::Framework => {
                "it answers, knows Frameworks, grants the rights; FrameworkController is at work"
            }
            Self::Job => "it answers, grants the rights, and its Job controller is at work",
            Self::JobSet => {
                "it answers, knows JobSets, grants the rights; the JobSet controller is at work"
            }
            Self::TfJob | Self::PyTorchJob | Self::XgBoostJob | Self::PaddleJob => {
                "it answers, knows the kind, grants the rights; the training operator is at work"
            }
        }
    }
}
