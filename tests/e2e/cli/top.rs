//! `trial-manager top` on narrow and resized terminals, its keys, and the end of the manager.

use nix::sys::signal::Signal;
use trialkeeper_tests::{
    Gate, RunningProgram, Search, Terminal, TestBed, WAIT_TIMEOUT, seed, wait_for,
};

/// Starts a search whose first trial runs and waits at the gate.
fn start_waiting_search(bed: &TestBed) -> (Gate, RunningProgram) {
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo score=0.5; echo score=0.75; echo >>../waits; read _ <../gate";
    let running = Search::new(command, 2).start(bed);
    wait_for("the trial to wait", WAIT_TIMEOUT, || (!bed.read("waits").is_empty()).then_some(()));
    (gate, running)
}

fn start_top(bed: &TestBed, columns: u16, rows: u16) -> Terminal {
    let mut command = bed.manager_command();
    command.args(["top", "--data-dir"]).arg(bed.data_folder()).env("NO_COLOR", "1");
    Terminal::start(&command, columns, rows)
}

/// Waits until the screen satisfies a condition.
fn wait_for_screen(
    terminal: &Terminal,
    what: &str,
    is_so: impl Fn(&[String]) -> bool,
) -> Vec<String> {
    wait_for(what, WAIT_TIMEOUT, || Some(terminal.screen()).filter(|lines| is_so(lines)))
}

#[test]
fn top_fits_any_terminal_and_ends_with_a_key() {
    let bed = TestBed::new();
    let (gate, running) = start_waiting_search(&bed);
    for key in ["q", "\u{3}", "xyz q"] {
        let mut terminal = start_top(&bed, 100, 40);
        let shown = wait_for_screen(&terminal, "the trial's latest", |lines| {
            lines.iter().any(|line| line.contains("0.75") && line.contains('█'))
        });
        let keys = "q quits, ? helps   Enter output   w why   v view   / filter   s sort   K stop   R rerun   o open";
        assert_eq!(shown.last().map(String::as_str), Some(keys), "{shown:#?}");
        // Colours are codes that begin with `CSI` and end with `m`.
        let drawn = terminal.output();
        let mut codes = drawn.split("\u{1b}[").skip(1);
        let is_colour = |code: &str| {
            code.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
        };
        assert!(!codes.any(is_colour), "{drawn:?}");

        terminal.resize(30, 8);
        let small = wait_for_screen(&terminal, "a smaller drawing", |lines| {
            lines.len() <= 8 && lines.iter().all(|line| line.chars().count() <= 30)
        });
        assert!(small.iter().any(|line| line.contains("0.75")), "the trial is missing: {small:#?}");

        assert!(!terminal.is_in_line_mode(), "the terminal is not in raw mode");
        terminal.press_keys(key);
        assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0), "{key:?}");
        assert!(terminal.is_in_line_mode(), "the terminal is not restored after {key:?}");
        wait_for("the restored screen", WAIT_TIMEOUT, || {
            terminal.output().ends_with("\u{1b}[?1049l").then_some(())
        });
    }
    gate.release(2);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
}

#[test]
fn top_shows_colours_a_bar_and_states_on_a_narrow_terminal() {
    let bed = TestBed::new();
    let (gate, running) = start_waiting_search(&bed);
    let mut command = bed.manager_command();
    command.args(["top", "--data-dir"]).arg(bed.data_folder());
    command.env_remove("NO_COLOR").env("TERM", "xterm");
    let mut terminal = Terminal::start(&command, 60, 30);
    let shown = wait_for_screen(&terminal, "the trial's latest", |lines| {
        lines.iter().any(|line| line.contains("0.75"))
            && lines.iter().any(|line| line.contains('░'))
    });
    assert!(shown.iter().all(|line| line.chars().count() <= 60), "{shown:#?}");
    // Opens the trial's output and returns to the list.
    terminal.press_keys("l");
    wait_for_screen(&terminal, "its output", |lines| lines.iter().any(|line| line == "score=0.75"));
    terminal.press_keys("?");
    wait_for_screen(&terminal, "the keys", |lines| {
        lines.first().is_some_and(|line| line == "keys")
    });
    terminal.press_keys("?");
    wait_for_screen(&terminal, "the list", |lines| lines.iter().any(|line| line.contains("curve")));
    let all = shown.join("\n");
    assert!(all.contains("0 of 2 trials") && all.contains("1 running"), "{shown:#?}");
    assert!(!all.contains("RUNNING"), "states are not in the portal's words: {shown:#?}");
    let drawn = terminal.output();
    assert!(drawn.contains("\u{1b}[36m1 running\u{1b}[0m"), "{drawn:?}");
    terminal.press_keys("q");
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0));
    gate.release(2);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
}

#[test]
fn top_shortens_names_but_not_numbers() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo score=0.5; echo score=0.75; echo >>../waits; read _ <../gate";
    let name = "a search with a long and descriptive name, longer than a narrow terminal is wide";
    let search = Search::new(command, 2).with("experimentName", name);
    let running = search.start(&bed);
    wait_for("the trial to wait", WAIT_TIMEOUT, || (!bed.read("waits").is_empty()).then_some(()));
    let id = format!("({})  running for ", bed.experiment_id());
    for (width, heads) in [
        (60, &["trial", "id", "latest", "time", "curve"][..]),
        (80, &["trial", "id", "latest", "time", "curve", "memory"]),
        (200, &["trial", "id", "latest", "time", "curve", "memory", "x"]),
    ] {
        let mut terminal = start_top(&bed, width, 30);
        let shown = wait_for_screen(&terminal, "the trial's memory", |lines| {
            let listed = lines.iter().any(|line| line.contains("0.75"));
            listed && lines.iter().any(|line| line.contains(heads[heads.len() - 1]))
        });
        let is_narrow = |line: &String| line.chars().count() <= usize::from(width);
        assert!(shown.iter().all(is_narrow), "{width}: {shown:#?}");
        let (title, is_whole) = (&shown[0], shown[0].starts_with(name));
        assert!(title.contains(&id) && (is_whole == (width == 200)), "{width}: {shown:#?}");
        assert!(is_whole || title.contains('…'), "{width}: {shown:#?}");
        let heading = shown.iter().find(|line| line.starts_with(" trial ")).unwrap();
        for head in heads {
            assert!(heading.split_whitespace().any(|word| word == *head), "{head}: {shown:#?}");
        }
        assert!(shown.iter().any(|line| line.contains("0 of 2 trials")), "{width}: {shown:#?}");
        terminal.press_keys("q");
        assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0));
    }
    gate.release(2);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
}

#[test]
fn top_reaches_all_trials_and_scrolls_their_output() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = "seq 200 | sed 's/^/line /'; echo score=0.5; echo >>../waits; read _ <../gate";
    let search = Search::new(command, 30).with("trialConcurrency", 30);
    let running = search.start(&bed);
    wait_for("all trials to wait", WAIT_TIMEOUT, || {
        (bed.read("waits").lines().count() == 30).then_some(())
    });
    let has = |wanted: &'static str| {
        move |lines: &[String]| lines.iter().any(|line| line.trim_start().starts_with(wanted))
    };
    let mut terminal = start_top(&bed, 100, 45);
    // A high terminal shows all running trials at once.
    wait_for_screen(&terminal, "the newest and the oldest trial", |lines| {
        has("29 ")(lines) && has("0 ")(lines)
    });
    terminal.resize(60, 20);
    wait_for_screen(&terminal, "fewer trials", |lines| {
        lines.len() == 20 && has("… and ")(lines) && !has("0 ")(lines)
    });
    // The keys End and PgUp.
    terminal.press_keys("\u{1b}[F");
    wait_for_screen(&terminal, "the oldest trial", |lines| {
        has("▸    0 ")(lines) && has("… 1")(lines)
    });
    terminal.press_keys("\u{1b}[5~");
    wait_for_screen(&terminal, "a page above", |lines| {
        lines.iter().any(|line| line.starts_with('▸')) && !has("▸    0 ")(lines)
    });
    terminal.press_keys("G");
    wait_for_screen(&terminal, "the oldest trial", has("▸    0 "));
    terminal.press_keys("l");
    wait_for_screen(&terminal, "its output", |lines| lines.contains(&"score=0.5".to_owned()));
    terminal.press_keys("\u{1b}[5~");
    wait_for_screen(&terminal, "the output above", |lines| {
        !lines.contains(&"score=0.5".to_owned()) && has("line 180")(lines)
    });
    terminal.press_keys("/LINE 42\r");
    wait_for_screen(&terminal, "a match", |lines| lines[lines.len() - 2] == "line 42");
    terminal.press_keys("g");
    wait_for_screen(&terminal, "the beginning", |lines| lines[1] == "line 1");
    terminal.press_keys("w");
    wait_for_screen(&terminal, "the state", |lines| lines[1] == "state  RUNNING");
    terminal.press_keys("o");
    let url = bed.manager_url();
    let page = format!("{url}/trials/");
    wait_for_screen(&terminal, "the address", |lines| lines[lines.len() - 1].starts_with(&page));
    terminal.press_keys("Ky");
    wait_for_screen(&terminal, "the stop", |lines| {
        lines[lines.len() - 1].contains("is being stopped")
    });
    terminal.press_keys("q");
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0));
    gate.release(30);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
}

#[test]
fn top_reruns_an_ended_trial() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command =
        "echo >>../starts; [ $NNI_TRIAL_SEQ_ID = 0 ] && exit 3; read _ <../gate; echo score=1";
    let search = Search::new(command, 2).with("trialConcurrency", 2);
    let running = search.start(&bed);
    let starts = |count: usize| {
        wait_for("trials to start", WAIT_TIMEOUT, || {
            (bed.read("starts").lines().count() == count).then_some(())
        });
    };
    starts(2);
    let mut terminal = start_top(&bed, 80, 20);
    wait_for_screen(&terminal, "a trial", |lines| lines.iter().any(|line| line.contains("trials")));
    terminal.press_keys("vv");
    wait_for_screen(&terminal, "the failed trial", |lines| {
        lines.iter().any(|line| line.contains("failed") && line.contains("exit"))
    });
    terminal.press_keys("Ry");
    wait_for_screen(&terminal, "the effect", |lines| {
        lines[lines.len() - 1].contains("will be rerun")
    });
    starts(3);
    terminal.press_keys("q");
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0));
    gate.release(2);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
}

#[test]
fn top_shows_the_end_of_the_manager() {
    let bed = TestBed::new();
    let (gate, running) = start_waiting_search(&bed);
    let mut terminal = start_top(&bed, 100, 40);
    wait_for_screen(&terminal, "the trial", |lines| lines.iter().any(|line| line.contains("0.75")));
    // A second `top` uses only the manager's address, so it cannot find the reason in the data folder.
    let url = bed.manager_url();
    let mut far = bed.manager_command();
    far.args(["top", "--manager", &url]);
    let mut far = Terminal::start(&far, 100, 40);
    wait_for_screen(&far, "the trial", |lines| lines.iter().any(|line| line.contains("0.75")));
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0));
    // The last output may still be in transit.
    wait_for("the last state after the end of `top`", WAIT_TIMEOUT, || {
        let drawn = terminal.output();
        let (_, after) = drawn.rsplit_once("\u{1b}[?1049l")?;
        after.contains("its manager was killed").then_some(())
    });
    wait_for_screen(&far, "the reason", |lines| {
        let last = lines.last().map_or("", String::as_str);
        last.starts_with("q quits, ? helps; trying again: the manager at ")
            && lines.iter().any(|line| line.contains("0.75"))
    });
    far.press_keys("q");
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || far.exit_code()), Some(0));
    gate.release(1);
}

#[test]
fn a_list_fits_the_terminal_and_colours_states() {
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 6, 3, 10).unwrap();
    for (no_color, coloured) in [("", true), ("1", false)] {
        let mut list = bed.manager_command();
        list.args(["trial", "ls", "--data-dir"]).arg(bed.data_folder()).env("NO_COLOR", no_color);
        list.env("TERM", "xterm");
        let mut terminal = Terminal::start(&list, 60, 40);
        assert_eq!(wait_for("the end", WAIT_TIMEOUT, || terminal.exit_code()), Some(0));
        let drawn = wait_for("all lines", WAIT_TIMEOUT, || {
            Some(terminal.output()).filter(|drawn| drawn.contains("more parameters"))
        });
        let plain = drawn.replace("\u{1b}[0m", "");
        let plain = ["31", "32", "36"]
            .iter()
            .fold(plain, |text, code| text.replace(&format!("\u{1b}[{code}m"), ""));
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
        assert!(plain.contains("it exited with 1"), "{plain}");
        assert_eq!(terminal.output().contains("\u{1b}[31mFAILED\u{1b}[0m"), coloured);
    }
}
