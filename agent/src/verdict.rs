//! PURE: everything known -> why the trial ended.
