"""What every model must keep to, whoever wrote it: ``qa-arch check-model`` and ``tests/test_contract*.py``.

``contracts.contract_of`` gives the contract of a task: a few questions, and checks on a model that was built
for them.
"""
