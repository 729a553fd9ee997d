use std::process::Command;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parameters(json: &Value) -> Parameters {
    json.as_object().unwrap().clone()
}

#[test]
fn placeholders_are_replaced_by_values_quoted_only_if_needed() {
    #[rustfmt::skip]
    let table = [
        ("train --lr {{lr}}",          json!({"lr": 0.001}),            "train --lr 0.001"),
        ("train --lr={{ lr }}",        json!({"lr": 1e-7}),             "train --lr=1e-7"),
        ("train {{a}}{{b}}",           json!({"a": "x", "b": 2}),       "train x2"),
        ("train {{a}}",                json!({"a": "two words"}),       "train 'two words'"),
        ("train {{a}}",                json!({"a": "it's"}),            r"train 'it'\''s'"),
        ("train '{{a}}'",              json!({"a": "it's"}),            r"train 'it'\''s'"),
        ("train \"{{a}}\"",            json!({"a": "$HOME \"x\""}),     r#"train "\$HOME \"x\"""#),
        ("train {{a}}",                json!({"a": ""}),                "train ''"),
        ("train {{a}}",                json!({"a": true}),              "train true"),
        ("train {{a}}",                json!({"a": [1, "b"]}),          r#"train '[1,"b"]'"#),
        ("train {{n}}>log",            json!({"n": 2}),                 "train '2'>log"),
        ("{{a}} x",                    json!({"a": "if"}),              "'if' x"),
        ("train {{learning-rate}}",    json!({"learning-rate": 1}),     "train 1"),
        ("train {{a}}",                json!({"a": "{{b}}", "b": 1}),   "train '{{b}}'"),
        ("train {{FC_TASK_INDEX}}",    json!({"a": 1}),                 "train {{FC_TASK_INDEX}}"),
        ("awk '{{ print $1 }}' {{a}}", json!({"a": 1}),                 "awk '{{ print $1 }}' 1"),
        ("train {{{a}}}",              json!({"a": 1}),                 "train {1}"),
        ("train {{{a}}} {{a}}",        json!({"a": "1,2"}),             "train {'1,2'} 1,2"),
        ("for i in {1..{{a}}}; do",    json!({"a": 3}),                 "for i in {1..3}; do"),
        ("{{a}} x",                    json!({"a": "coproc"}),          "'coproc' x"),
        ("# isn't\ntrain {{a}}",       json!({"a": "b c"}),             "# isn't\ntrain 'b c'"),
        ("train }} {{a}} {{",          json!({"a": 1}),                 "train }} 1 {{"),
    ];
    for (command, values, rendered) in table {
        assert_eq!(render_command(command, &parameters(&values)), rendered);
    }
}

#[test]
fn a_placeholder_without_a_parameter_is_refused() {
    let names = ["lr", "batch_size"];
    #[rustfmt::skip]
    let table = [
        ("train {{lr}} {{ batch_size }}",  None),
        ("train {{FC_TASK_INDEX}}",        None),
        ("awk '{{ print $1 }}'",           None),
        ("train ${{{}}}",                  None),
        ("train {{batchsize}}",            Some("{{batchsize}} names no parameter of the search space; did you mean `batch_size`? Allowed: lr, batch_size")),
    ];
    for (command, problem) in table {
        assert_eq!(check_placeholders(command, &names).err().as_deref(), problem, "{command}");
    }
}

const SH: &str = "/bin/sh";
const BASH: &str = "/bin/bash";

/// Returns the words that the shell passes to the program.
fn shell_output(shell: &str, command: &str) -> String {
    let output = Command::new(shell).arg("-c").arg(command).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.stderr.is_empty(), "{shell}: {command}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_shell_sees_the_value(
        value in prop_oneof!["[^\0\r\n]{0,12}", "[-a-z0-9 '\"\\\\$`(){}#!~*?;&|<>=.,\t\n]{0,12}", "[a-z]{1,4}"],
    ) {
        // Command substitution removes newlines at the end.
        prop_assume!(!value.ends_with('\n'));
        let values = parameters(&json!({"v": value}));
        #[rustfmt::skip]
        let table = [
            "printf %s {{v}}",
            "printf %s '{{v}}'",
            "printf %s \"{{v}}\"",
            "# don't {{v}}\nprintf %s {{v}}",
            "(printf %s {{v}})",
            "printf %s \"$(printf %s {{v}})\"",
            "printf %s \"$(printf %s \"{{v}}\")\"",
            "printf %s \"$(printf %s '{{v}}')\"",
            "x=`printf %s {{v}}`; printf %s \"$x\"",
            "x=`printf %s \"{{v}}\"`; printf %s \"$x\"",
            "x=`printf %s '{{v}}'`; printf %s \"$x\"",
            "printf %s \\\"; printf '' {{v}}; :",
            "x={{v}}; printf %s \"$x\"",
            "it=\"it's\"; printf %s {{v}}",
        ];
        for command in table {
            let expected = if command.contains("\\\"; ") { "\"" } else { value.as_str() };
            let rendered = render_command(command, &values);
            for shell in [SH, BASH] {
                prop_assert_eq!(&shell_output(shell, &rendered), expected, "{}: {}", shell, rendered);
            }
        }
        // Constructs that only `bash` understands.
        #[rustfmt::skip]
        let table = [
            "printf %s $'{{v}}'",
            "x=$'it\\'s {{v}}'; printf %s \"${x#\"it's \"}\"",
            "printf %s \"$(printf %s $'{{v}}')\"",
            "x=`printf %s $'{{v}}'`; printf %s \"$x\"",
            ": $$'\\'; printf %s {{v}}",
            "x={{v}}; [[ $x == {{v}} ]] && printf %s {{v}}",
            "cat < <(printf %s {{v}})",
            "x={{{v}}}; printf %s \"${x:1:-1}\"",
            "set -- {{{v}}}; [ $# = 1 ] && printf %s {{v}}",
        ];
        for command in table {
            let rendered = render_command(command, &values);
            prop_assert_eq!(&shell_output(BASH, &rendered), &value, "{}", rendered);
        }
    }

    #[test]
    fn random_commands_are_rendered_without_panic(command in ".*", value in ".*") {
        drop(render_command(&command, &parameters(&json!({"v": value}))));
        drop(check_placeholders(&command, &["v"]));
    }
}
