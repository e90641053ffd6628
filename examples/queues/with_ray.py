"""A study on Ray, with a GPU for each run.

`python with_ray.py auto ~/study` uses the cluster of this node; `local` starts one here.
"""

import os
import sys

import joblib
import ray
from my_training import load, load_records, make_study, save, train
from ray.util.joblib import register_ray

WORKERS = 2  # a constant: it reveals nothing about K
START_SECONDS = "300"  # for Ray's own processes on a busy machine


def main(address, folder, gpus_per_run=1, **settings):
    """Runs the study, or resumes it. In each run, the only visible GPU is `cuda:0`."""
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", START_SECONDS)
    os.environ.setdefault("RAY_worker_register_timeout_seconds", START_SECONDS)
    here = {"num_cpus": WORKERS, "num_gpus": WORKERS * gpus_per_run, "include_dashboard": False}
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
    quiet = {"log_to_driver": False, "runtime_env": environment}
    with ray.init(address, **quiet, **(here if address == "local" else {})):
        register_ray()
        study = make_study(folder, **settings)
        with joblib.parallel_config("ray", ray_remote_args={"num_gpus": gpus_per_run}):
            best = study.run(train, records=load_records(), jobs=WORKERS, save=save, load=load)
    return best, study


if __name__ == "__main__":
    best, study = main(sys.argv[1], sys.argv[2])
    print(f"{best.candidate}, accuracy {best.score:.1%}. {study.certificate.statement}")
