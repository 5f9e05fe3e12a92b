.PHONY: demo test build lint
demo test build lint:
	python3 dev.py $@
