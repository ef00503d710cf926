// Package fuzzer fills objects of image.macrack.io at random, for tests.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"

	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the fuzzer functions. None of the kinds has defaults.
var Funcs = func(runtimeserializer.CodecFactory) []any { return scalarfuzzer.Funcs }
