"""Federated averaging in Flower's simulation, on saved data; run by a Python that has ``flwr[simulation]`` and torch.

In: an .npz of samples, shares, sizes, initial weights; rounds, learning rate, cores. Out: one line of JSON with
the accuracy after the last round and seconds. Clients take their samples in the order that the file gives for each
round, so that both sides see the same batches.
"""

import json
import sys
import time

import numpy as np

PATH, NUM_ROUNDS, RATE, NUM_CORES = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])


def network(num_inputs: int, hidden: int):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def main() -> None:
    import torch
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    saved = np.load(PATH)
    num_workers, hidden = len(saved["orders"]), int(saved["hidden"])
    first = [saved[f"w{at}"] for at in range(4)]
    accuracies: list[float] = []
    ends: list[float] = []

    class Client(NumPyClient):
        def __init__(self, rank: int) -> None:
            import torch

            torch.set_num_threads(1)
            data = np.load(PATH)
            self.inputs, self.targets = torch.as_tensor(data["inputs"]), torch.as_tensor(data["targets"])
            self.order = torch.as_tensor(data["orders"][rank])
            self.module = network(self.inputs[0].numel(), hidden)

        def fit(self, parameters, config):
            import torch
            from torch.nn import functional

            for one, value in zip(self.module.parameters(), parameters, strict=True):
                one.data = torch.as_tensor(value).clone()
            optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE)
            for chosen in self.order[int(config["round"]) - 1]:
                optimizer.zero_grad()
                functional.cross_entropy(self.module(self.inputs[chosen]), self.targets[chosen]).backward()
                optimizer.step()
            return [one.detach().numpy() for one in self.module.parameters()], 1, {}

    def client_fn(context: Context):
        return Client(int(context.node_config["partition-id"])).to_client()

    tested = network(saved["inputs"][0].size, hidden)
    test_inputs, test_targets = torch.as_tensor(saved["test_inputs"]), torch.as_tensor(saved["test_targets"])

    def evaluate(at: int, parameters, _config):
        ends.append(time.perf_counter())
        if at < NUM_ROUNDS:
            return
        for one, value in zip(tested.parameters(), parameters, strict=True):
            one.data = torch.as_tensor(value).clone()
        with torch.no_grad():
            accuracies.append(float((tested(test_inputs).argmax(1) == test_targets).float().mean()))
        return

    def server_fn(_context: Context):
        strategy = FedAvg(
            fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=num_workers, min_available_clients=num_workers,
            initial_parameters=ndarrays_to_parameters(first), evaluate_fn=evaluate,
            on_fit_config_fn=lambda at: {"round": at},
        )  # fmt: skip
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=NUM_ROUNDS))

    begun = time.perf_counter()
    run_simulation(
        ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), num_supernodes=num_workers,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": NUM_CORES}},
    )  # fmt: skip
    print(
        json.dumps({"accuracy": accuracies[-1], "seconds": time.perf_counter() - begun, "rounds_s": ends[-1] - ends[0]})
    )


if __name__ == "__main__":
    main()
