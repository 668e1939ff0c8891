#!/bin/bash
# The state of a server against a model in memory: posts, retries, erasures, crashes, full and failing disks, maintenance,
# backups, restarts at random.   tools/state.sh [--steps N] [--seed S] [FOLDER of a build, default build/release]
set -eu
steps=1000000 seed=1 build=build/release
while [ $# -gt 0 ]; do
    case $1 in
    --steps) steps=$2; shift ;;
    --seed) seed=$2; shift ;;
    *) build=$1 ;;
    esac
    shift
done
[ -n "${HSTU_TEST_FOLDER:-}" ] || [ ! -d /dev/shm ] || export HSTU_TEST_FOLDER=/dev/shm
HSTU_STATE_STEPS=$steps HSTU_STATE_SEED=$seed "$build/tests/unit" test_user_writer.c:user_writer_is_what_the_model_says
