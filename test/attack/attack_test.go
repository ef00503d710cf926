package main

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

func answers(a answer) step { return func(context.Context, *world, string) answer { return a } }

func TestDifferentAnswersAreNotTheSame(t *testing.T) {
	refused := answer{code: http.StatusForbidden, body: "there is none: A"}
	for name, test := range map[string]struct {
		second answer
		same   bool
	}{
		"the same but for the name": {answer{code: http.StatusForbidden, body: "there is none: B"}, true},
		"other words":               {answer{code: http.StatusForbidden, body: "there is none, but another's: B"}, false},
		"another code":              {answer{code: http.StatusNotFound, body: "there is none: B"}, false},
	} {
		a := same(answers(refused), answers(test.second), "A", "B")(t.Context(), nil, "acme")
		for _, wanted := range []want{forbidden("there is none"), forbidden("")} {
			assert.Equal(t, test.same, wanted.check(a) == nil, "%s: %+v", name, a)
		}
	}
}

func TestAnAnswerThatCouldNotBeUsedIsNotAccepted(t *testing.T) {
	assert.NoError(t, forbidden("no").check(answer{code: http.StatusForbidden, body: "no"}))
	assert.Error(t, forbidden("no").check(answer{code: http.StatusForbidden, err: errors.New("no")}))
	assert.NoError(t, says(0, "reset").check(answer{err: errors.New("connection reset")}), "no answer, where none is wanted")
}

func TestAnyOfWantsOneOfItsTexts(t *testing.T) {
	wanted := anyOf([]int{0, http.StatusRequestEntityTooLarge}, "connection reset", "too large")
	assert.NoError(t, wanted.check(answer{err: errors.New("connection reset by peer")}))
	assert.NoError(t, wanted.check(answer{code: http.StatusRequestEntityTooLarge, body: "too large"}))
	assert.Error(t, wanted.check(answer{err: errors.New("no such user")}))
	assert.Error(t, wanted.check(answer{code: http.StatusCreated, body: "too large"}))
}

func TestRequestsAreCountedByTheirCodes(t *testing.T) {
	each := func(i int) step { return answers(answer{code: []int{201, 403, 403}[i%3]}) }
	assert.Equal(t, map[int]int{201: 2, 403: 4}, countCodes(t.Context(), nil, "acme", 6, each))
	assert.Equal(t, answer{code: 201, body: "codes map[201:2 403:4]"}, times(6, each)(t.Context(), nil, "acme"))
}
