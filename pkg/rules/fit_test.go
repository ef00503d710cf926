package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestCheckCaches(t *testing.T) {
	storage := func(text string) Resources { return Resources{Storage: resource.MustParse(text)} }
	assert.NoError(t, CheckCaches("base", storage("512Gi"), storage("64Gi"), resource.MustParse("447Gi")))
	assert.ErrorContains(t, CheckCaches("base", storage("512Gi"), storage("64Gi"), resource.MustParse("448Gi")), `the caches have 448Gi in all, but a Mac of class "base" has 448Gi`)
}

func TestCheckFit(t *testing.T) {
	amounts := func(cpu, memory, storage string) Resources {
		return Resources{resource.MustParse(cpu), resource.MustParse(memory), resource.MustParse(storage)}
	}
	mini, host := amounts("10", "24Gi", "512Gi"), amounts("2", "4Gi", "64Gi")
	small := amounts("4", "8Gi", "64Gi")
	assert.NoError(t, CheckFit("base", mini, host, Resources{}, small))
	assert.NoError(t, CheckFit("base", mini, host, small, small))
	assert.NoError(t, CheckFit("base", mini, host, small, amounts("4", "12Gi", "384Gi")), "what is left, to the byte")
	assert.ErrorContains(t, CheckFit("base", mini, host, small, amounts("5", "8Gi", "64Gi")), "asks for 5 cpu")
	assert.ErrorContains(t, CheckFit("base", mini, host, small, amounts("4", "13Gi", "64Gi")), "asks for 13Gi memory")
	assert.ErrorContains(t, CheckFit("base", mini, host, small, amounts("4", "8Gi", "385Gi")), "asks for 385Gi storage")
	assert.ErrorContains(t, CheckFit("base", amounts("10", "16Gi", "1Ti"), host, Resources{}, amounts("4", "64Gi", "1Gi")), "larger Mac")
	assert.Equal(t, "4", small.CPU.String(), "arguments stay as they are")
}
