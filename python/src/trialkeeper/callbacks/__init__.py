"""Callbacks for training libraries. Each library has a module; import the one that you need.

========================================  ==========================================
``trialkeeper.callbacks.keras``           ``model.fit(…, callbacks=[Report()])``
``trialkeeper.callbacks.lightning``       ``Trainer(callbacks=[Report()])``
``trialkeeper.callbacks.transformers``    ``Trainer(callbacks=[Report()])``
``trialkeeper.callbacks.xgboost``         ``xgboost.train(…, callbacks=[Report()])``
``trialkeeper.callbacks.lightgbm``        ``lightgbm.train(…, callbacks=[report()])``
``trialkeeper.callbacks.sklearn``         ``cross_validate(estimator, X, y)``
``trialkeeper.callbacks.mlflow``          ``experiment.run(callbacks=[LogTrials()])``
``trialkeeper.callbacks.wandb``           ``experiment.run(callbacks=[LogTrials()])``
========================================  ==========================================

The last two are for a search, the others for a training script. Each module imports only its library, and this
package imports none.
"""
