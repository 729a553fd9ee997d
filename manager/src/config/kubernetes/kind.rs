//! The kinds of Kubernetes objects that an experiment file can request.

/// The name of the only role if the file gives none.
pub(super) const DEFAULT_ROLE_NAME: &str = "worker";

/// Defines the table of kinds. A row has the name and the plural of a kind in the API, and the group and the version of
/// the API. The name of its platform in the experiment file and the name of its controller follow.
macro_rules! kinds {
    ($($(#[$doc:meta])*
        $kind:ident: $object:literal, $plural:literal, $group:literal / $version:literal, $platform:literal, $controller:literal;
    )*) => {
        /// The kind of object that runs an attempt of a trial job.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum WorkloadKind {
            $($(#[$doc])* $kind,)*
        }

        impl WorkloadKind {
            /// All kinds. Each precedes the kinds that it owns.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Returns the kind of the object, with the name that its API uses.
            pub const fn object(self) -> &'static str {
                match self {
                    $(Self::$kind => $object,)*
                }
            }

            /// Returns the plural of the kind, with which the API names its objects.
            pub const fn plural(self) -> &'static str {
                match self {
                    $(Self::$kind => $plural,)*
                }
            }

            /// Returns the group of the API to which the kind belongs.
            pub const fn group(self) -> &'static str {
                match self {
                    $(Self::$kind => $group,)*
                }
            }

            /// Returns the version of the group.
            pub const fn version(self) -> &'static str {
                match self {
                    $(Self::$kind => $version,)*
                }
            }

            /// Returns the group and its version, as in the `apiVersion` of an object.
            pub const fn api_version(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!($group, "/", $version),)*
                }
            }

            /// Returns the platform's name in the experiment file.
            pub const fn platform(self) -> &'static str {
                match self {
                    $(Self::$kind => $platform,)*
                }
            }

            /// Returns the usual name of the controller that creates the pods.
            pub const fn controller(self) -> &'static str {
                match self {
                    $(Self::$kind => $controller,)*
                }
            }
        }
    };
}

#[rustfmt::skip]
kinds! {
    /// A Framework of Microsoft's `FrameworkController`.
    Framework:  "Framework",  "frameworks",  "frameworkcontroller.microsoft.com" / "v1", "frameworkcontroller", "FrameworkController";
    /// A `TrainJob` of Kubeflow Trainer.
    TrainJob:   "TrainJob",   "trainjobs",   "trainer.kubeflow.org" / "v1alpha1", "trainer",       "Kubeflow Trainer";
    /// A `JobSet`, with a Job for each of several roles.
    JobSet:     "JobSet",     "jobsets",     "jobset.x-k8s.io" / "v1alpha2", "kubernetes",         "the JobSet controller";
    /// A Job of `batch/v1`.
    Job:        "Job",        "jobs",        "batch" / "v1",        "kubernetes",                  "the cluster's Job controller";
    /// A `TFJob` of the training operator.
    TfJob:      "TFJob",      "tfjobs",      "kubeflow.org" / "v1", "kubeflow",                    "the training operator";
    /// A `PyTorchJob` of the training operator.
    PyTorchJob: "PyTorchJob", "pytorchjobs", "kubeflow.org" / "v1", "kubeflow",                    "the training operator";
    /// An `XGBoostJob` of the training operator.
    XgBoostJob: "XGBoostJob", "xgboostjobs", "kubeflow.org" / "v1", "kubeflow",                    "the training operator";
    /// A `PaddleJob` of the training operator.
    PaddleJob:  "PaddleJob",  "paddlejobs",  "kubeflow.org" / "v1", "kubeflow",                    "the training operator";
}

impl WorkloadKind {
    /// Returns the message for a cluster without problems.
    pub fn success_message(self) -> String {
        let (object, controller) = (self.object(), self.controller());
        format!("it responds, has {object}s, grants the rights; {controller} is running")
    }

    /// Returns the kind of object in the user's template.
    pub(super) fn template_kind(self) -> &'static str {
        // The template is a Job, because only its pod is used.
        if self == Self::TrainJob { "Job" } else { self.object() }
    }

    /// Returns true if the section itself may hold the fields of the only role.
    pub(super) fn has_one_role(self) -> bool {
        matches!(self, Self::Job | Self::TrainJob)
    }

    /// Returns true if Kueue queues objects of the kind.
    pub(super) fn has_queue(self) -> bool {
        self != Self::Framework
    }

    /// Returns true if the pods can wait for one another with `frameworkbarrier`.
    pub(super) fn has_barrier(self) -> bool {
        self == Self::Framework
    }

    /// Returns true if the controller drops the fields of a pod that its version of Kubernetes does not know.
    pub fn drops_new_pod_fields(self) -> bool {
        self == Self::Framework
    }

    /// Returns the text in a pod's specification that stands for the index of the pod in its role.
    pub fn pod_index(self) -> &'static str {
        // FrameworkController inserts the index. Kubernetes expands variables.
        if self == Self::Framework { "{{FC_TASK_INDEX}}" } else { "$(TRIALKEEPER_ROLE_INDEX)" }
    }

    /// Returns true if all trials share one pod template, which no trial may change.
    pub fn shares_pod_template(self) -> bool {
        self == Self::TrainJob
    }
}
