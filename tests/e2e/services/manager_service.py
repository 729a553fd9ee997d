"""A plugin whose platform is a whole search of `trial-manager`, on any training service.

The conformance test of plugins thus applies to the built-in services, too. A kill of this program kills the manager. The
settings are `manager` (the program), `arguments` (for `run` and `resume`), `experiment` (the experiment file), and `waits` (agents
outlive their trials while no manager runs).
"""

import http.client
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from trialkeeper.service import Gone, NoRoom, Running, TrainingService, Waiting

#: A trial waits for the file with its command, and then becomes that command. The trial that the tuner proposes gets no
#: file. It keeps the search running.
TRIAL = """
file='{folder}'/$NNI_TRIAL_JOB_ID
until [ -e "$file" ]; do [ -d '{folder}' ] || exit 0; sleep 0.05; done
. "$file"
"""

#: The harness looks for the output and the agent's lock in the job's folder.
HEAD = """
exec >>'{folder}/stdout' 2>&1
ln -sfn "$NNI_OUTPUT_DIR/spool" '{folder}/spool'
"""

#: A pod's agent waits for a manager before it ends. The trial holds a lock of its own instead.
POD_HEAD = """
exec >>'{folder}/stdout' 2>&1
mkdir -p '{folder}/spool'
exec 9>'{folder}/spool/lock'
flock 9
"""


class Manager(TrainingService):
    poll_seconds = 0.1

    def __init__(self):
        super().__init__()
        self.manager = None
        self.address = None
        self.token = ""

    def open(self):
        self.commands = self.state_dir / "commands"
        self.commands.mkdir(exist_ok=True)
        data = self.state_dir / "data"
        if (data / self.experiment / "user.token").exists():
            what = ["resume", self.experiment]
        else:
            file = self.state_dir / "experiment.json"
            command = TRIAL.format(folder=self.commands)
            # The space has one point, so the tuner proposes one trial.
            space = {"x": {"_type": "choice", "_value": [0]}}
            search = {"trialCommand": command, "searchSpace": space, "tuner": {"name": "GridSearch"}}
            file.write_text(json.dumps({**search, **self.settings["experiment"]}))
            what = ["run", str(file), "--id", self.experiment]
        command = [self.settings["manager"], *what, *self.settings["arguments"]]
        command += ["--data-dir", str(data), "--port", "0", "--agent", self.agent, "--on-term", "leave"]
        # Trials have the harness's grace period.
        environment = {**os.environ, "TRIALKEEPER_GRACE": "3s"}
        self.manager = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, text=True, env=environment)
        ready = threading.Event()
        threading.Thread(target=self.read_messages, args=[ready], daemon=True).start()
        ready.wait()
        if self.address is None:
            raise RuntimeError("the manager has ended")
        self.token = (data / self.experiment / "user.token").read_text().strip()

    def read_messages(self, ready):
        for line in self.manager.stderr:
            sys.stderr.write(line)
            if line.startswith("experiment ") and " on http" in line:
                self.address = urlsplit(line.split()[-1]).netloc
                ready.set()
        ready.set()

    def ask(self, method, path, body=None, key=None):
        connection = http.client.HTTPConnection(self.address, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        connection.request(method, f"/api/v1{path}", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        # A trial that has ended cannot be stopped.
        if answer.status >= 400 and answer.status != 409:
            raise RuntimeError(f"{method} {path}: {answer.status} {text}")
        return json.loads(text or "null")

    def start(self, job):
        # The key makes the request safe to repeat, so `find` need not look for the trial.
        trial = self.ask("POST", "/trials", {"parameters": {"x": 0}}, f"{self.experiment}/{job.attempt}").get("id")
        if trial is None:
            raise NoRoom("the manager starts no more trials")
        new = self.commands / f"{trial}.new"
        command = job.argv[job.argv.index("--shell") + 1]
        head = POD_HEAD if self.settings["waits"] else HEAD
        new.write_text(head.format(folder=job.folder) + command)
        new.rename(self.commands / trial)
        return trial

    def stop(self, handle, job, force):
        self.ask("POST", f"/trials/{handle}/stop")

    def poll(self, jobs):
        trials = {trial["id"]: trial for trial in self.ask("GET", "/trials?limit=1000")["trials"]}
        return {handle: self.state(trials[handle]) for handle in jobs if handle in trials}

    def state(self, trial):
        if trial["ended_at_ms"] is not None:
            code = trial["exit_code"] if trial["state"] != "SUCCEEDED" else 0
            return Gone(code=code, reason="unknown" if code is None else "exit", message=trial["message"])
        return Waiting(trial["message"] or "") if trial["state"] == "WAITING" else Running()

    def room(self):
        return self.settings["experiment"]["trialConcurrency"] - 1 - len(self.living())

    def _clean_up(self):
        done = super()._clean_up()
        self.close()
        clean = [self.settings["manager"], "clean", self.experiment, "--data-dir", str(self.state_dir / "data")]
        cleaned = subprocess.run(clean, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if cleaned.returncode != 0:
            done["left"].append({"place": self.experiment, "why": cleaned.stderr})
        return done

    def close(self):
        if self.manager is not None:
            self.manager.terminate()
            self.manager.wait()


if __name__ == "__main__":
    Manager().serve()
