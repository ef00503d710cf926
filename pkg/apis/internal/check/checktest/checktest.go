// Package checktest compares what validation says with what a test expects.
package checktest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Errors asserts that errs are as many as want, each with the text of its counterpart in its message.
func Errors(t *testing.T, want []string, errs field.ErrorList) {
	t.Helper()
	var got []string
	for _, err := range errs {
		got = append(got, err.Error())
	}
	if !assert.Len(t, got, len(want), "errors:\n%s", strings.Join(got, "\n")) {
		return
	}
	for i := range want {
		assert.Contains(t, got[i], want[i])
	}
}
