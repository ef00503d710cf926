// Package fuzzer fills in objects of image.macrack.io at random, for tests.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"

	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the functions that fill in objects. The kinds have no defaults.
var Funcs = func(runtimeserializer.CodecFactory) []any { return scalarfuzzer.Funcs }
