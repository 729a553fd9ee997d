"""A template for a plugin that runs trials as jobs of an HTTPS API with a token, such as a cloud's scheduler.

    trainingService:
      platform: plugin
      command: [python3, https_jobs.py]
      settings: {url: "https://jobs.example.org/v1", tokenFile: /home/me/.config/jobs-token, queue: gpu}

The API:

    POST   /jobs        {"name", "queue", "script", "gpus"}   201 {"id"}; 409 {"id"} for a name that is taken; 429
    GET    /jobs?ids=…  {"jobs": [{"id", "state", "exit_code", "reason"}]}     state: queued, running, ended
    DELETE /jobs/ID     stops the job with SIGTERM, or immediately with ?force=1

The job's folder, the agent and the code are on a disk that the site's machines share with this one. The plugin reads
the token from a file that only its owner can read. The token never appears in an argument, a variable or the
experiment file.
"""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from trialkeeper.service import Gone, NoRoom, Problem, Refused, Running, TrainingService, Unavailable, Waiting

KNOWN = {"url", "tokenFile", "caFile", "queue"}


class HttpsJobs(TrainingService):
    name = "https-jobs"
    poll_seconds = 5.0

    def check(self):
        problems = [Problem("unknown setting", path=f"settings.{name}") for name in set(self.settings) - KNOWN]
        url = self.settings.get("url", "")
        if not url.startswith("https://"):
            problems.append(Problem("expected an address that begins with https://", path="settings.url"))
        path = Path(self.settings.get("tokenFile", "")).expanduser()
        if not path.is_file():
            problems.append(Problem(f"{path} is not a file", path="settings.tokenFile"))
        elif path.stat().st_mode & 0o077:
            advice = f"chmod 600 {path}"
            problems.append(Problem("other users can read it", path="settings.tokenFile", advice=advice))
        return problems

    def ask(self, method, path, body=None):
        """Sends a request to the API. Reads the token each time, so that a new token takes effect immediately."""
        token = Path(self.settings["tokenFile"]).expanduser().read_text().strip()
        request = urllib.request.Request(
            self.settings["url"].rstrip("/") + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=self.settings.get("caFile"))
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read(2000).decode(errors="replace")
            if error.code == 409:
                return json.loads(text)
            if error.code == 404:
                return {}
            if error.code == 401:
                # The trial is not the cause, and the job of an earlier request may be running.
                raise Unavailable(f"401: {text}; write a new token to {self.settings['tokenFile']}") from error
            after = error.headers.get("Retry-After", "")
            pause = float(after) if after.isdigit() else None
            if error.code == 429:
                raise NoRoom(text or "the queue is full", pause) from error
            if error.code >= 500:
                raise Unavailable(f"{error.code}: {text}", pause) from error
            raise Refused(f"{error.code}: {text}") from error
        except (OSError, http.client.HTTPException) as error:
            # The request may have arrived. A second one with the same name is answered with 409.
            raise Unavailable(f"{self.settings['url']}: {error}") from error

    def start(self, job):
        body = {"name": job.name, "queue": self.settings.get("queue"), "script": job.script(), "gpus": job.gpus}
        return str(self.ask("POST", "/jobs", body)["id"])

    # `find` is not needed: a second POST with the same name creates no job, and returns the id of the first one.

    def stop(self, handle, job, force):
        self.ask("DELETE", f"/jobs/{urllib.parse.quote(handle)}" + ("?force=1" if force else ""))

    def poll(self, jobs):
        ids = urllib.parse.quote(",".join(jobs))
        found = {str(job["id"]): job for job in self.ask("GET", f"/jobs?ids={ids}")["jobs"]}
        return {handle: self.look(found.get(handle)) for handle in jobs}

    def look(self, job):
        if job is None:
            return Gone(reason="unknown", message="the API no longer knows the job")
        if job["state"] == "queued":
            return Waiting(job.get("reason") or "queued")
        if job["state"] == "running":
            return Running()
        return Gone(code=job.get("exit_code"), reason=job.get("reason") or "exit")


if __name__ == "__main__":
    HttpsJobs().serve()
