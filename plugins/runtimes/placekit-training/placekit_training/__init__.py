"""Plans of training steps: one GPU, replicas, pipelines or both, and the script that runs each."""
