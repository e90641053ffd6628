"""A study whose runs go to workers that dask-jobqueue starts as jobs.

`python with_dask_jobqueue.py slurm ~/study` uses SLURM; `local` starts two workers here.
"""

import sys

import dask
import joblib
from dask.distributed import Client
from dask_jobqueue import SLURMCluster
from dask_jobqueue.local import LocalCluster
from my_training import load, load_records, make_study, save, train

WORKERS = 2  # a constant: it reveals nothing about K
START_SECONDS = 600  # for the queue, or for a busy machine


def start(cluster):
    """A cluster whose jobs have one worker each."""
    shape = {"cores": 1, "processes": 1, "memory": "2GB", "death_timeout": START_SECONDS}
    # The dashboard would show the number of runs to everyone who reaches its port.
    hidden = {"scheduler_options": {"dashboard_address": None}}
    if cluster == "slurm":
        gpu = {"job_extra_directives": ["--gres=gpu:1"], "walltime": "24:00:00"}
        return SLURMCluster(**shape, **hidden, **gpu)
    return LocalCluster(**shape, **hidden)


def main(cluster, folder, **settings):
    """Runs the study, or resumes it; a lost worker's runs continue on another one."""
    dask.config.set({"distributed.comm.timeouts.connect": START_SECONDS})
    dask.config.set({"distributed.scheduler.allowed-failures": 100})  # preempted workers of a run
    with start(cluster) as jobs, Client(jobs) as client:
        jobs.scale(jobs=WORKERS)
        client.wait_for_workers(WORKERS, timeout=START_SECONDS)
        study = make_study(folder, **settings)
        with joblib.parallel_config("dask"):
            best = study.run(train, records=load_records(), jobs=WORKERS, save=save, load=load)
    return best, study


if __name__ == "__main__":
    best, study = main(sys.argv[1], sys.argv[2])
    print(f"{best.candidate}, accuracy {best.score:.1%}. {study.certificate.statement}")
