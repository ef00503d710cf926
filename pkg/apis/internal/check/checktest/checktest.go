// Package checktest compares validation errors with those that a test expects.
package checktest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Errors asserts that errs and want have the same length and that each error contains the text of
// its counterpart.
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
