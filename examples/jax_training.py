"""Fit a layer by gemmhub's products in a program that JAX compiles: python examples/jax_training.py"""

import jax
import jax.numpy as jnp

import gemmhub.jax

keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (256, 32))
wanted = jnp.sin(x @ jax.random.normal(keys[1], (32, 4)) / 4)
weights = {"first": jax.random.normal(keys[2], (32, 64)) / 6, "bias": jnp.zeros(64), "second": jnp.zeros((64, 4))}


def loss(weights):
    hidden = gemmhub.jax.matmul(x, weights["first"], bias=weights["bias"], activation="gelu")
    return jnp.mean((gemmhub.jax.matmul(hidden, weights["second"]) - wanted) ** 2)


@jax.jit
def step(weights):
    value, gradient = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.3 * g, weights, gradient)


for number in range(301):
    value, weights = step(weights)
    if number % 100 == 0:
        print(f"step {number:3}: loss {value:.4f}")
assert value < 0.1
