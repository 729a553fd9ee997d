//! A terminal that is drawn on: its size, keys without Enter, and everything as it was before at the end. What is drawn
//! is for others to say.

use std::io::{self, IsTerminal as _, Read as _, Stdin, Stdout, Write as _};
use std::os::fd::AsFd as _;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// To another screen than the shell's, no cursor, no line that goes on in the next (xterm's and DEC's private modes).
const BEGIN: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
/// All of that undone.
const END: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// To the first place (ECMA-48, CUP).
const HOME: &str = "\u{1b}[H";
/// The sequences that empty the rest of this line, and of the screen (ECMA-48, EL and ED).
const REST_OF_LINE: &str = "\u{1b}[K";
const REST_OF_SCREEN: &str = "\u{1b}[J";
/// Ctrl-C and Ctrl-D, as keys: a terminal that gives keys at once makes no signals of them.
const CONTROL_C: u8 = 3;
const CONTROL_D: u8 = 4;

/// Columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// Characters of a line.
    pub(super) columns: usize,
    /// Lines.
    pub(super) rows: usize,
}

/// The user's action at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// A key that asks for the end: q, Ctrl-C or Ctrl-D.
    Quit,
    /// It has another size.
    Resized,
}

/// The terminal, for as long as it is drawn on.
pub(super) struct Screen {
    stdout: Stdout,
    keys: Option<Keys>,
    resized: Signal,
}

/// Standard input, where it is a terminal too, and how it was.
struct Keys {
    stdin: Stdin,
    before: Termios,
    quit: mpsc::Receiver<()>,
}

impl Screen {
    /// Takes the terminal that standard output is; `None` where it is none that can be drawn on.
    pub(super) fn take() -> io::Result<Option<Self>> {
        let stdout = io::stdout();
        let dumb = std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb");
        if dumb || !stdout.is_terminal() {
            return Ok(None);
        }
        let resized = signal(SignalKind::window_change())?;
        let keys = Keys::take()?;
        let mut screen = Self { stdout, keys, resized };
        screen.write(BEGIN)?;
        Ok(Some(screen))
    }

    /// Returns the current size; 80 by 24 where the terminal does not say.
    pub(super) fn size(&self) -> Size {
        let told = tcgetwinsize(self.stdout.as_fd()).ok();
        let told = told.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        told.map_or(Size { columns: 80, rows: 24 }, |size| Size {
            columns: usize::from(size.ws_col),
            rows: usize::from(size.ws_row),
        })
    }

    /// Shows these lines and nothing else.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let lines = lines.join(&format!("{REST_OF_LINE}\n"));
        self.write(&format!("{HOME}{lines}{REST_OF_LINE}{REST_OF_SCREEN}"))
    }

    /// Waits for what a person does. Nothing is lost if this is dropped.
    pub(super) async fn done(&mut self) -> Done {
        let quit = async {
            match &mut self.keys {
                Some(keys) => drop(keys.quit.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = quit => Done::Quit,
            _ = self.resized.recv() => Done::Resized,
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = self.stdout.lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone has nothing to be put back.
        drop(self.write(END));
    }
}

impl Keys {
    /// `None`: keys are pressed elsewhere, or this is a job in the background that may not have them.
    fn take() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || !is_in_the_foreground(&stdin) {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut now = before.clone();
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        let (sender, quit) = mpsc::channel(1);
        tcsetattr(&stdin, OptionalActions::Now, &now)?;
        let taken = Self { stdin, before, quit };
        // It ends with the program: nothing makes a read that waits for a key return.
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut keys = [0; 64];
            let mut goes_on = true;
            while goes_on {
                // A terminal that has gone is at its end.
                let read = io::stdin().read(&mut keys).unwrap_or(0);
                goes_on = read > 0 && !keys[..read].iter().copied().any(is_end);
            }
            drop::<mpsc::Sender<()>>(sender);
        })?;
        Ok(Some(taken))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // One that has gone needs nothing.
        tcsetattr(&self.stdin, OptionalActions::Now, &self.before).unwrap_or(());
    }
}

fn is_end(key: u8) -> bool {
    matches!(key, b'q' | b'Q' | CONTROL_C | CONTROL_D)
}

fn is_in_the_foreground(stdin: &Stdin) -> bool {
    rustix::termios::tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}
