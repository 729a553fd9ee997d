"""Mistakes of newcomers: each error names the mistake and the remedy."""

import copy
import pickle

import pytest

import trialkeeper as tk

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}


def objective(p):
    return p["x"]


async def waits(p):
    return 1.0


def yields(p):
    yield 1.0


def takes_two(x, y):
    return x + y


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ("train.py", SPACE),
            TypeError,
            r"'train\.py' is none; .*tk\.Experiment\(trial_command='python3 train\.py'",
        ),
        ((["sh", "train.sh"], SPACE), TypeError, r"tk\.Experiment\(trial_command='sh train\.sh'"),
        ((None, SPACE), TypeError, "calls a function, and None is none"),
        ((SPACE, objective), TypeError, r"the function comes first: tk\.search\(objective, space\)"),
        ((objective, ["x"]), tk.ConfigurationError, r"space: expected a mapping of parameters, found \['x'\]"),
        ((objective, None), tk.ConfigurationError, "space: expected a mapping of parameters, found None"),
        ((waits, SPACE), TypeError, r"is an `async def`; .*asyncio\.run"),
        ((yields, SPACE), TypeError, r"yields; return the result, and report steps with tk\.report"),
        ((takes_two, SPACE), TypeError, r"missing a required argument: 'y'; .*return f\(\*\*p\)"),
        ((lambda: 1, SPACE), TypeError, "too many positional arguments"),
    ],
)
def test_wrong_arguments_of_a_search_are_refused_before_it_starts(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        tk.search(*arguments, data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def returns_text(p):
    return "good"


def returns_pair(p):
    return 1, 2


def returns_texts(p):
    return {"model": "resnet"}


def returns_nothing(p):
    pass


def fails(p):
    raise ValueError(f"no data for {sorted(p)}")


def returns_names(p):
    return {"loss": 1.0, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("function", "fields", "parts"),
    [
        (returns_text, {}, ["the objective returned 'good', of the type str: return a number"]),
        (returns_pair, {}, ["the objective returned (1, 2), of the type tuple"]),
        (returns_texts, {}, ["the objective returned {'model': 'resnet'}, of the type dict"]),
        (returns_nothing, {}, ["the objective returned None: return a number, or call tk.final()"]),
        (fails, {}, ["trial 0 (", "no data for ['x']", "test_mistakes.py", "in fails"]),
        (returns_names, {"metric": "losss"}, ["they reported `accuracy`, `loss`; did you mean `loss`?"]),
    ],
)
def test_a_search_without_a_result_gives_the_reason_of_its_first_trial(tmp_path, function, fields, parts):
    with pytest.raises(tk.ExperimentFailed) as failed:
        tk.search(function, SPACE, max_trials=2, data_dir=tmp_path, **fields)
    message = str(failed.value)
    assert message.startswith("no trial succeeded with a result; trial 0 (")
    assert all(part in message for part in parts), message
    assert str(failed.value.experiment.folder) in message
    assert "trials ended" not in message


def test_a_search_accepts_a_tuner_as_in_the_file(tmp_path):
    tuner = {"name": "Evolution", "class_args": {"population_size": 5, "seed": 3}}
    experiment = tk.search(objective, SPACE, max_trials=1, tuner=tuner, data_dir=tmp_path)
    class_args = {"optimize_mode": "minimize", "population_size": 5, "seed": 3}
    assert experiment.config["tuner"] == {"name": "Evolution", "classArgs": class_args}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"sampler": "TPE"}, tk.ConfigurationError, "sampler: .* here it is `tuner`"),
        ({"search_space": SPACE}, tk.ConfigurationError, "here it is `space`"),
        ({"mode": "min"}, tk.ConfigurationError, "here it is `direction`"),
        ({"n_trials": 3}, tk.ConfigurationError, r"n_trials: .*whose loop decides about it; tk\.search"),
        ({"pruner": None}, tk.ConfigurationError, r"pruner: .*tk\.search"),
        ({"directon": "minimize"}, TypeError, "did you mean `direction`"),
        ({"verbose": 1}, TypeError, "its arguments are space, tuner, direction, seed, class_args, path"),
        ({"tuner": "TPEE"}, tk.ConfigurationError, r"^tuner\.name: `TPEE` is not a tuner; did you mean `TPE`\?"),
    ],
)
def test_wrong_arguments_of_a_study_name_the_right_ones(fields, error, message):
    with pytest.raises(error, match=message):
        tk.Study(SPACE, **fields)


def test_other_tools_names_lead_to_those_of_this_package():
    with tk.Study(SPACE, seed=1) as study:
        suggestion = study.ask()
        trial = study.tell(suggestion, 1)
        experiment = tk.Experiment()
        for owner, name, meant in [
            (tk, "create_study", "tk.Study(space"),
            (tk, "fmin", "tk.search(objective, space)"),
            (tk, "report_final_result", "tk.final"),
            (study, "optimize", "tk.search(objective, space"),
            (study, "best_params", "`best.parameters`"),
            (suggestion, "suggest_float", "the study's space"),
            (suggestion, "params", "`parameters`"),
            (trial, "params", "`parameters`"),
            (experiment, "best_params", "`best.parameters`"),
            (experiment, "get_dataframe", "`to_pandas()`"),
        ]:
            with pytest.raises(AttributeError, match="here it is") as error:
                getattr(owner, name)
            assert meant in str(error.value)
        with pytest.raises(AttributeError, match=r"^'Study' object has no attribute 'nothing'$"):
            study.nothing  # noqa: B018
    assert copy.deepcopy(suggestion) == pickle.loads(pickle.dumps(suggestion)) == suggestion


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("good", ValueError, r"tell\(\): expected a number, found 'good'"),
        ({"loss": 1}, TypeError, "tell the number that the study optimises"),
        ([1, 2], TypeError, r"expected a number, found \[1, 2\]"),
    ],
)
def test_a_result_that_is_no_number_is_named(value, error, message):
    with tk.Study(SPACE) as study:
        suggestion = study.ask()
        with pytest.raises(error, match=message):
            study.tell(suggestion, value)
        assert study.tell(suggestion, 0.5).value == 0.5
