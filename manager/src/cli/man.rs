//! `man`: manual pages for man(1), generated from the help texts. Packages of this program contain them.

use std::io;
use std::path::Path;

use clap::Command;

/// Writes a page for the program and a page for each of its commands into a folder. Creates the folder if it is
/// missing.
pub(super) fn write(program: Command, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(program, folder)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let stop = Command::new("stop").about("Stop it.").arg(Arg::new("id").help("Which."));
        let hidden = Command::new("secret").hide(true);
        let program = Command::new("tool").about("Does things.").subcommands([stop, hidden]);
        write(program, &folder.path().join("man1")).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join("man1").join(name));
        assert!(page("tool.1").unwrap().contains("Does things."));
        assert!(page("tool-stop.1").unwrap().contains("Which."));
        assert!(page("tool-secret.1").is_err());
    }
}
