"""A study in one SLURM job that is requeued when it is preempted or its time is over.

`python with_submitit.py slurm ~/study` submits it; `local` in place of `slurm` tries it here.
"""

import sys
from pathlib import Path

import submitit
from my_training import load, load_records, make_study, save, train


class Tuning:
    """The job. Its folder must be on a disk that every node sees."""

    def __init__(self, folder, settings):
        self.folder, self.settings = Path(folder).absolute(), settings

    def __call__(self):
        """Runs the study, or resumes it."""
        study = make_study(self.folder / "study", **self.settings)
        best = study.run(train, records=load_records(), save=save, load=load)
        study.certificate.save(self.folder / "certificate.json")
        return best

    def checkpoint(self):
        """Is called before the job is cut: the same job is queued again."""
        return submitit.helpers.DelayedSubmission(self)


def submit(cluster, folder, **settings):
    """The submitted job."""
    executor = submitit.AutoExecutor(Path(folder) / "logs", cluster, slurm_max_num_timeout=100)
    executor.update_parameters(
        name="tuning",
        timeout_min=24 * 60,
        cpus_per_task=8,
        **({"slurm_additional_parameters": {"gpus": 1}} if cluster == "slurm" else {}),
    )
    return executor.submit(Tuning(folder, settings))


if __name__ == "__main__":
    best = submit(sys.argv[1], sys.argv[2]).result()
    print(f"{best.candidate}, accuracy {best.score:.1%}")
