"""A study in one SLURM job that is requeued when it is preempted or its time is over.

`python with_submitit.py slurm ~/study cuda:0 cuda:1` submits a job with two GPUs, one run on each;
`python with_submitit.py local ~/study cpu` tries it here.
"""

import sys
from pathlib import Path

import submitit
from my_training import load, load_records, make_study, save, train


class Tuning:
    """The job. Its folder must be on a disk that every node sees."""

    def __init__(self, folder, devices, settings):
        self.folder, self.devices = Path(folder).absolute(), list(devices)
        self.settings = settings

    def __call__(self):
        """Runs the study, or resumes it."""
        study = make_study(self.folder / "study", **self.settings)
        devices = self.devices  # also the number of runs at a time
        best = study.run(train, records=load_records(), devices=devices, save=save, load=load)
        study.certificate.save(self.folder / "certificate.json")
        return best

    def checkpoint(self):
        """Is called before the job is cut: the same job is queued again."""
        return submitit.helpers.DelayedSubmission(self)


def submit(cluster, folder, devices, **settings):
    """The submitted job."""
    executor = submitit.AutoExecutor(Path(folder) / "logs", cluster, slurm_max_num_timeout=100)
    executor.update_parameters(
        name="tuning",
        timeout_min=24 * 60,
        cpus_per_task=4 * len(devices),
        **({"slurm_gpus_per_node": len(devices)} if cluster == "slurm" else {}),
    )
    return executor.submit(Tuning(folder, devices, settings))


if __name__ == "__main__":
    best = submit(sys.argv[1], sys.argv[2], sys.argv[3:]).result()
    print(f"{best.candidate}, accuracy {best.score:.1%}")
