"""What the trainers' own loaders say about our files. The scripts here run in `.venv-trainers` (see scripts/trainers.sh)."""
