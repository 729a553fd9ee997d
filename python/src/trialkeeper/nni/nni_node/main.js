// NNI's client names this file to Node; trial-manager does not read it.
