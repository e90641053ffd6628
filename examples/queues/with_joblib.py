"""A study on the GPUs of one node, one run on each.

`python with_joblib.py ~/study cuda:0 cuda:1` uses two of them; `cpu:0 cpu:1` tries it here.
"""

import sys

from my_training import load, load_records, make_study, save, train


def main(folder, devices, **settings):
    """Runs the study, or resumes it; `trial.device` is the device of a run."""
    study = make_study(folder, **settings)
    best = study.run(train, records=load_records(), devices=devices, save=save, load=load)
    return best, study


if __name__ == "__main__":
    best, study = main(sys.argv[1], sys.argv[2:])
    print(f"{best.candidate}, accuracy {best.score:.1%}. {study.certificate.statement}")
