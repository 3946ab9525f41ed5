"""Stable-Baselines3: PPO balances a pole; many steps of the environment, then many updates from what they gave."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=4, device="cpu", seed=0, verbose=0)
model.learn(total_timesteps=1_000_000)
